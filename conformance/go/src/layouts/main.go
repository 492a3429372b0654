// Command layouts prints offsets and sizes of types of runtime/trace and of runtime, one a line, from
// the DWARF of a program.
//
// Usage: layouts PROGRAM QUERY...
//
// A query is TYPE (its size), TYPE.FIELD (the offset of the field), TYPE.FIELD[] (the size of an
// element of that slice), or TYPE.FIELD[].INNER (the offset of a slice of bytes in an element; 0 if
// the element is such a slice).
package main

import (
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"os"
	"strings"
)

func main() {
	if len(os.Args) < 2 {
		fail("usage: layouts PROGRAM QUERY...")
	}
	file, err := elf.Open(os.Args[1])
	check(err)
	data, err := file.DWARF()
	check(err)
	types := structs(data)
	for _, query := range os.Args[2:] {
		fmt.Println(answer(types, query))
	}
}

// structs are the structs of runtime/trace, and g and m of runtime, by name without the package.
func structs(data *dwarf.Data) map[string]*dwarf.StructType {
	types := map[string]*dwarf.StructType{}
	reader := data.Reader()
	for {
		entry, err := reader.Next()
		check(err)
		if entry == nil {
			return types
		}
		name, _ := entry.Val(dwarf.AttrName).(string)
		short, ok := strings.CutPrefix(name, "runtime/trace.")
		if name == "runtime.g" || name == "runtime.m" {
			short, ok = strings.TrimPrefix(name, "runtime."), true
		}
		if entry.Tag != dwarf.TagStructType || !ok {
			continue
		}
		found, err := data.Type(entry.Offset)
		check(err)
		types[short] = structure(found)
	}
}

func answer(types map[string]*dwarf.StructType, query string) int64 {
	name, rest, _ := strings.Cut(query, ".")
	outer := types[name]
	if outer == nil {
		fail("the program has no type " + name)
	}
	if rest == "" {
		return outer.ByteSize
	}
	path, inner, isElement := strings.Cut(rest, "[]")
	found := field(outer, path)
	if !isElement {
		return found.ByteOffset
	}
	element := field(structure(found.Type), "array").Type.(*dwarf.PtrType).Type
	if inner == "" {
		return element.Size()
	}
	if structure(element).StructName == "[]uint8" {
		return 0
	}
	bytes := field(structure(element), strings.TrimPrefix(inner, "."))
	if name := structure(bytes.Type).StructName; name != "[]uint8" {
		fail(query + " is a " + name)
	}
	return bytes.ByteOffset
}

// structure is a struct, also behind names.
func structure(found dwarf.Type) *dwarf.StructType {
	switch found := found.(type) {
	case *dwarf.TypedefType:
		return structure(found.Type)
	case *dwarf.StructType:
		return found
	}
	fail(found.String() + " is not a struct")
	return nil
}

func field(outer *dwarf.StructType, name string) *dwarf.StructField {
	for _, field := range outer.Field {
		if field.Name == name {
			return field
		}
	}
	fail(outer.StructName + " has no field " + name)
	return nil
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "layouts:", why)
	os.Exit(1)
}
