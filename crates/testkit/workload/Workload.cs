// The program whose diagnostics the tests read. It is an application (Main) and a startup hook
// (StartupHook.Initialize) in one assembly, because one of the runtimes can only be had inside
// somebody else's application. Compiled with mono's mcs against the .NET Core 3.1 assemblies; the
// same file runs on every runtime.
//
//   WORKLOAD_MODE     idle              nothing but waiting
//                     mix               every kind of event at a modest rate (the default)
//                     flood:T:P:C       T threads write events as fast as they can, pausing 1 ms
//                                       after every P events (0: never), with C characters of
//                                       payload (0: an int and a long), next to what "mix" does
//                     shapes            50 rounds a second of events whose payloads are hard to read
//                                       by their metadata alone; nothing else
//                     answers:NAME      a program with a known answer: see Answers.cs
//   WORKLOAD_SECONDS  exit with code 0 after this number of seconds (0 or unset: run until killed)
//   WORKLOAD_HOST     set by the start script when the hook has to stand in for Main
using System;
using System.Collections.Generic;
using System.Diagnostics.Tracing;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

// Manifest based: every primitive type, versions, opcodes, activities.
[EventSource(Name = "Triscope-Workload", Guid = "7b1ad2a4-3f4e-4d7e-9d8c-0a1b2c3d4e5f")]
public sealed class Manifest : EventSource
{
    public static readonly Manifest Log = new Manifest();
    Manifest() : base(EventSourceSettings.EtwManifestEventFormat) { }

    public static class Keywords
    {
        public const EventKeywords Primitives = (EventKeywords)0x1;
        public const EventKeywords Strings = (EventKeywords)0x2;
        public const EventKeywords Activities = (EventKeywords)0x4;
        public const EventKeywords Arrays = (EventKeywords)0x8;
        public const EventKeywords Flood = (EventKeywords)0x10;
    }
    public static class Tasks { public const EventTask Work = (EventTask)1; }

    [Event(1, Keywords = Keywords.Primitives, Level = EventLevel.Informational)]
    public void Primitives(bool b, byte u8, sbyte i8, short i16, ushort u16, int i32, uint u32,
        long i64, ulong u64, float f, double d, Guid g, char c, DateTime t)
    {
        if (IsEnabled()) WriteEvent(1, b, u8, i8, i16, u16, i32, u32, i64, u64, f, d, g, c, t);
    }
    [Event(2, Keywords = Keywords.Strings, Level = EventLevel.Warning, Version = 3)]
    public void Strings(string a, int n, string b) { WriteEvent(2, a, n, b); }
    [Event(3, Keywords = Keywords.Activities, Task = Tasks.Work, Opcode = EventOpcode.Start)]
    public void WorkStart(int id) { WriteEvent(3, id); }
    [Event(4, Keywords = Keywords.Activities, Task = Tasks.Work, Opcode = EventOpcode.Stop)]
    public void WorkStop(int id) { WriteEvent(4, id); }
    [Event(5, Keywords = Keywords.Arrays)]
    public void Bytes(byte[] data) { WriteEvent(5, data); }
    [Event(6, Keywords = Keywords.Flood, Level = EventLevel.Verbose)]
    public void Flood(int thread, long sequence) { WriteEvent(6, thread, sequence); }
    [Event(7, Level = EventLevel.Error)]
    public void Empty() { WriteEvent(7); }
    [Event(8, Keywords = Keywords.Flood, Level = EventLevel.Verbose)]
    public void FloodText(string text) { WriteEvent(8, text); }
}

[EventData]
public class Point
{
    public int X { get; set; }
    public double Y { get; set; }
    public string Name { get; set; }
}

// Self-describing: arrays and nested objects, and all four kinds of counters.
[EventSource(Name = "Triscope-SelfDescribing")]
public sealed class SelfDescribing : EventSource
{
    public static readonly SelfDescribing Log = new SelfDescribing();
    SelfDescribing() : base(EventSourceSettings.EtwSelfDescribingEventFormat) { }

    EventCounter mean;
    IncrementingEventCounter increments;
    PollingCounter heap;
    IncrementingPollingCounter rate;
    long total;

    [Event(1)] public void IntArray(int[] values, string name) { WriteEvent(1, values, name); }
    [Event(2, Opcode = (EventOpcode)77)] public void WithOpcode(int a) { WriteEvent(2, a); }

    [NonEvent]
    public void Nested()
    {
        var options = new EventSourceOptions { Level = EventLevel.Informational, Keywords = (EventKeywords)0x20 };
        Write("Nested", options, new {
            P = new Point { X = 3, Y = 2.5, Name = "pt\u00e9" }, Q = new int[] { 1, 2, 3 }, D = new double[] { 0.5, 1.5 },
            B = true, T = new DateTime(2021, 2, 3, 4, 5, 6, DateTimeKind.Utc), G = new Guid(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
            L = new List<Point> { new Point { X = 9, Y = 9.5, Name = "n" } } });
    }

    [NonEvent]
    public void Count(double value)
    {
        Interlocked.Increment(ref total);
        mean?.WriteMetric(value);
        increments?.Increment(1);
    }

    protected override void OnEventCommand(EventCommandEventArgs command)
    {
        if (command.Command != EventCommand.Enable || mean != null) return;
        heap = new PollingCounter("heap-size", this, () => GC.GetTotalMemory(false)) { DisplayName = "Heap" };
        rate = new IncrementingPollingCounter("total-rate", this, () => Interlocked.Read(ref total)) { DisplayName = "Rate", DisplayRateTimeScale = TimeSpan.FromSeconds(1) };
        increments = new IncrementingEventCounter("increments", this) { DisplayName = "Increments" };
        mean = new EventCounter("request-time", this) { DisplayName = "Request Time", DisplayUnits = "ms" };
        GC.KeepAlive(heap); GC.KeepAlive(rate);
    }
}

[EventData]
public class Switches
{
    public bool On { get; set; }
    public bool Off { get; set; }
    public string Name { get; set; }
}

// Self-describing: a bool takes one byte and a decimal is a double of eight, while the metadata has
// the type codes of four and sixteen bytes.
[EventSource(Name = "Triscope-Shapes")]
public sealed class Shapes : EventSource
{
    public static readonly Shapes Log = new Shapes();
    Shapes() : base(EventSourceSettings.EtwSelfDescribingEventFormat) { }

    [Event(1)] public void Declared(int a, bool b, string c, int d) { WriteEvent(1, a, b, c, d); }
    [Event(2)] public void Price(decimal amount, string name) { WriteEvent(2, amount, name); }

    [NonEvent]
    public void Round(int i)
    {
        var options = new EventSourceOptions { Level = EventLevel.Informational };
        Declared(i, i % 2 == 0, "c" + i, -i);
        Price(i * 0.25m, "p" + i);
        Write("Anonymous", options, new { A = i, B = i % 2 == 0, C = "c" + i, D = -i });
        Write("Money", options, new { Amount = i * -0.5m, Paid = i % 3 == 0, T = new DateTime(2021, 2, 3, 4, 5, 6, DateTimeKind.Utc) });
        // Booleans of four bytes fit as well: A and B with I and S in them, then I = "xy", S = "z" ...
        Write("Ambiguous", options, new { A = true, B = false, I = 0x10000, S = "", T = "xyz", J = i << 16, V = "pq" });
        Write("Inner", options, new { Id = i, S = new Switches { On = i % 2 == 0, Off = i % 2 != 0, Name = "s" + i }, F = new bool[] { true, false, i % 2 == 0 } });
    }
}

// Manifest based: a bool takes four bytes. Start and stop have as many fields, of which one is shared.
[EventSource(Name = "Triscope-Requests")]
public sealed class Requests : EventSource
{
    public static readonly Requests Log = new Requests();
    Requests() : base(EventSourceSettings.EtwManifestEventFormat) { }

    [Event(1)] public void RequestStart(int id, string url) { WriteEvent(1, id, url); }
    [Event(2)] public void RequestStop(int id, int code) { WriteEvent(2, id, code); }
    [Event(3)] public void Flags(bool a, bool b, string c, int d) { WriteEvent(3, a, b, c, d); }
}

public static class Workload
{
    static readonly object gate = new object();
    static readonly byte[][] keep = new byte[64][];
    static readonly ManualResetEventSlim mixed = new ManualResetEventSlim(); // once

    // Names that profiles of this program are expected to show.
    [MethodImpl(MethodImplOptions.NoInlining)]
    public static int Burn(int depth, int n)
    {
        if (depth > 0) return Burn(depth - 1, n) + 1;
        int sum = 0;
        for (int i = 0; i < n; i++) sum = sum * 31 + i;
        return sum;
    }
    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Allocate()
    {
        for (int i = 0; i < 200; i++) keep[i & 63] = new byte[1000 + i * 100];
        keep[0] = new byte[200000]; // large object heap
    }
    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Throw(int i)
    {
        try { throw new InvalidOperationException("boom-" + i + "-\u03b1\u03b2"); }
        catch (InvalidOperationException) { }
    }
    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Contend() { lock (gate) Thread.Sleep(2); }
    static T Generic<T>(T value) { Burn(2, 100); return value; }

    static async Task Activity(int id)
    {
        Manifest.Log.WorkStart(id);
        await Task.Delay(1);
        Burn(3, 1000);
        await Task.Yield();
        Manifest.Log.WorkStop(id);
    }

    static void Mix()
    {
        for (int i = 1; ; i++)
        {
            Manifest.Log.Primitives(i % 2 == 0, (byte)i, (sbyte)-i, (short)-i, (ushort)i, -i, (uint)i, -(long)i << 33, (ulong)i << 40,
                i / 3f, i / 7d, new Guid(i, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 'x', new DateTime(2020, 1, 2, 3, 4, 5, DateTimeKind.Utc));
            Manifest.Log.Strings("h\u00e9llo-\U0001F600-" + i, i, i % 5 == 0 ? "" : "z\u0100z");
            Manifest.Log.Bytes(new byte[] { 1, 2, 3, (byte)i });
            Manifest.Log.Empty();
            SelfDescribing.Log.IntArray(new int[] { i, i + 1, i + 2 }, "arr");
            SelfDescribing.Log.WithOpcode(i);
            SelfDescribing.Log.Nested();
            SelfDescribing.Log.Count(i % 100);
            Allocate();
            Throw(i);
            Generic(i); Generic("s"); Generic((long)i);
            var activities = new Task[4];
            for (int k = 0; k < activities.Length; k++) activities[k] = Activity(i * 10 + k);
            ThreadPool.QueueUserWorkItem(_ => Contend());
            ThreadPool.QueueUserWorkItem(_ => Contend());
            Burn(20, 2000000);
            Task.WaitAll(activities);
            if (i % 50 == 0) GC.Collect();
            if (i == 1) mixed.Set();
            Thread.Sleep(5);
        }
    }

    static void WriteShapes()
    {
        for (int i = 1; ; i++)
        {
            Requests.Log.RequestStart(i, "/items/" + i);
            Requests.Log.RequestStart(-i, "/inner/" + i);
            Shapes.Log.Round(i);
            Requests.Log.Flags(i % 2 == 0, i % 3 == 0, "f" + i, i);
            Requests.Log.RequestStop(-i, 404);
            Requests.Log.RequestStop(i, 200);
            if (i == 1) mixed.Set();
            Thread.Sleep(20);
        }
    }

    static void Flood(int id, int pause, int characters)
    {
        string text = characters > 0 ? new string('b', characters) : null;
        for (long n = 1; ; n++)
        {
            if (!Manifest.Log.IsEnabled(EventLevel.Verbose, Manifest.Keywords.Flood)) { Thread.Sleep(10); continue; }
            if (text != null) Manifest.Log.FloodText(text); else Manifest.Log.Flood(id, n);
            if (pause > 0 && n % pause == 0) Thread.Sleep(1);
        }
    }

    static void Background(string name, ThreadStart body) { new Thread(body) { Name = name, IsBackground = true }.Start(); }

    // Starts the threads of the mode, then waits for the end.
    public static void Run()
    {
        string mode = Environment.GetEnvironmentVariable("WORKLOAD_MODE") ?? "mix";
        int seconds;
        int.TryParse(Environment.GetEnvironmentVariable("WORKLOAD_SECONDS") ?? "0", out seconds);
        string[] parts = mode.Split(':');
        if (parts[0] == "answers") { Answers.Run(parts[1]); return; }
        if (parts[0] == "flood")
        {
            for (int t = 0; t < int.Parse(parts[1]); t++)
            {
                int id = t;
                Background("flood-" + t, () => Flood(id, int.Parse(parts[2]), int.Parse(parts[3])));
            }
        }
        // A session that starts while a thread makes an event source can hang .NET 9 and 10 for
        // good: the one holds the lock of all sources, the other that of a type's initialization,
        // and each wants both. So no one connects to this process before its sources are made.
        if (parts[0] != "idle")
        {
            if (parts[0] == "shapes") Background("shapes", WriteShapes); else Background("mix", Mix);
            mixed.Wait();
        }
        Console.Error.WriteLine("workload " + mode + " runs");
        Thread.Sleep(seconds > 0 ? seconds * 1000 : Timeout.Infinite);
    }

    public static int Main() { Run(); return 0; }
}

internal class StartupHook
{
    static int calls;

    public static void Initialize()
    {
        Console.Error.WriteLine("startup hook ran");
        if (Interlocked.Increment(ref calls) > 1 || Environment.GetEnvironmentVariable("WORKLOAD_HOST") == null) return;
        Workload.Run();
        Environment.Exit(0);
    }
}
