// Adds a Portable PDB file to an assembly that mcs compiled with -debug: mcs writes the lines to a .mdb file.
//
//   Symbols.exe IN.dll OUT.dll FILE.cs embedded|beside
//
// FILE.cs is the name of the only source file in the PDB file. See README.md.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Text;
using Mono.Cecil;
using Mono.Cecil.Cil;
using Mono.CompilerServices.SymbolWriter;

static class Symbols
{
    static void Main(string[] args)
    {
        var lines = MonoSymbolFile.ReadSymbolFile(args[0] + ".mdb");
        var module = ModuleDefinition.ReadModule(args[0]);
        var document = new Document(args[2])
        {
            Type = DocumentType.Text,
            Language = DocumentLanguage.CSharp,
            LanguageVendor = DocumentLanguageVendor.Microsoft,
        };
        foreach (var type in module.GetTypes())
        foreach (var method in type.Methods)
        {
            var entry = lines.GetMethodByToken(method.MetadataToken.ToInt32());
            if (entry == null || !method.HasBody) continue;
            var at = new Dictionary<int, Instruction>();
            foreach (var instruction in method.Body.Instructions) at[instruction.Offset] = instruction;
            var last = -1;
            foreach (var line in entry.GetLineNumberTable().LineNumbers)
            {
                // Of several at one offset, the first one counts.
                if (line.Offset <= last || !at.ContainsKey(line.Offset)) continue;
                last = line.Offset;
                var isHidden = line.IsHidden || line.Row >= 0xfeefee || line.Row <= 0;
                method.DebugInformation.SequencePoints.Add(new SequencePoint(at[line.Offset], document)
                {
                    StartLine = isHidden ? 0xfeefee : line.Row,
                    EndLine = isHidden ? 0xfeefee : line.Row,
                    StartColumn = isHidden ? 0 : Math.Max(line.Column, 1),
                    EndColumn = isHidden ? 0 : Math.Max(line.Column, 1) + 1,
                });
            }
        }
        var isEmbedded = args[3] == "embedded";
        var writer = isEmbedded
            ? (ISymbolWriterProvider) new EmbeddedPortablePdbWriterProvider()
            : new PortablePdbWriterProvider();
        module.Write(args[1], new WriterParameters { WriteSymbols = true, SymbolWriterProvider = writer });
        Forget(args[1], Path.ChangeExtension(Path.GetFullPath(args[1]), ".pdb"));
    }

    // Overwrites the directory in the path of the PDB file, which the assembly has: it is one of this machine.
    static void Forget(string assembly, string path)
    {
        var bytes = File.ReadAllBytes(assembly);
        var old = Encoding.UTF8.GetBytes(path);
        var name = Encoding.UTF8.GetBytes(Path.GetFileName(path));
        for (var at = 0; at + old.Length <= bytes.Length; at++)
        {
            if (!bytes.Skip(at).Take(old.Length).SequenceEqual(old)) continue;
            Array.Clear(bytes, at, old.Length);
            name.CopyTo(bytes, at);
        }
        File.WriteAllBytes(assembly, bytes);
    }
}
