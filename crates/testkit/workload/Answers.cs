// Programs with known answers: the modes answers:NAME. Each waits until its event source is enabled,
// then does something whose times it measures itself, prints them on standard output, and ends when
// standard input does.
//
//   answers:clock    1000 events, each directly before a system call
//   answers:convoy   threads that compute within one lock; a request needs the lock too
//   answers:starve   all workers of the thread pool are blocked; a request queues a work item
//   answers:gc       collections; how many, and how long the program stood still (.NET 7 and later)
//   answers:preempted  a thread that computes on CPU 0, which another process keeps busy
//   answers:waits    a thread waits for another one, five times each: for its turn, a lock, a task and a pipe
//   answers:serve    computes 40 ms for each byte of standard input, and answers with a byte; prints
//                    the CPU time of its thread on standard error
//
//   answers:lines    runs Lines.Run() of the assembly WORKLOAD_ASSEMBLY: see lines/Lines.cs
//   answers:shares   computes in three methods for about 60, 30 and 10 % of its time, writes their CPU
//                    time to the file `shares` of its temporary directory, and ends: waits for nothing
//
// Lines of output: a word and numbers; times are nanoseconds, points in time those of
// CLOCK_MONOTONIC.
using System;
using System.Collections.Generic;
using System.Diagnostics.Tracing;
using System.IO;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

[EventSource(Name = "Triscope-Answers")]
public sealed class Steps : EventSource
{
    public static readonly Steps Log = new Steps();
    public readonly ManualResetEvent Enabled = new ManualResetEvent(false);

    [Event(1)] public void Tick(int n) { WriteEvent(1, n); }
    [Event(2)] public void ConvoyStart() { WriteEvent(2); }
    [Event(3)] public void ConvoyStop() { WriteEvent(3); }
    [Event(4)] public void StarveStart() { WriteEvent(4); }
    [Event(5)] public void StarveStop() { WriteEvent(5); }
    [Event(6)] public void ServeStart() { WriteEvent(6); }
    [Event(7)] public void ServeStop() { WriteEvent(7); }
    [Event(8)] public void PreemptedStart() { WriteEvent(8); }
    [Event(9)] public void PreemptedStop() { WriteEvent(9); }
    [Event(10)] public void WaitsStart() { WriteEvent(10); }
    [Event(11)] public void WaitsStop() { WriteEvent(11); }

    protected override void OnEventCommand(EventCommandEventArgs command)
    {
        // The constructor of the base class can call it before Enabled is set.
        if (command.Command == EventCommand.Enable && Enabled != null) Enabled.Set();
    }
}

public static class Answers
{
    struct Timespec { public long Seconds, Nanos; }

    [DllImport("libc.so.6")] static extern int clock_gettime(int id, out Timespec time);
    [DllImport("libc.so.6")] static extern int getppid();
    [DllImport("libc.so.6")] static extern int gettid();
    [DllImport("libc.so.6")] static extern int sched_setaffinity(int tid, IntPtr size, ulong[] cpus);
    [DllImport("libc.so.6")] static extern int open(string path, int flags);
    [DllImport("libc.so.6")] static extern IntPtr read(int file, byte[] bytes, IntPtr size);
    [DllImport("libc.so.6")] static extern IntPtr write(int file, byte[] bytes, IntPtr size);
    [DllImport("libc.so.6")] static extern int close(int file);
    [DllImport("libc.so.6")] static extern int pipe(int[] ends);

    static long Clock(int id)
    {
        Timespec time;
        clock_gettime(id, out time);
        return time.Seconds * 1000000000 + time.Nanos;
    }
    static long Now() { return Clock(1); }

    static int sink;

    // Computes for this much CPU time of the thread.
    static void Compute(int milliseconds)
    {
        long end = Clock(3) + milliseconds * 1000000L;
        while (Clock(3) < end) for (int i = 0; i < 20000; i++) sink += i;
    }

    static void Ticks()
    {
        for (int i = 0; i < 1000; i++)
        {
            Steps.Log.Tick(i);
            getppid();
            if (i % 10 == 9) Thread.Sleep(1);
        }
    }

    static void Convoy()
    {
        var gate = new object();
        var held = new ManualResetEvent(false);
        var holds = new List<string>();
        var threads = new Thread[3];
        for (int t = 0; t < threads.Length; t++)
        {
            threads[t] = new Thread(() =>
            {
                for (int i = 0; i < 8; i++)
                {
                    lock (gate)
                    {
                        held.Set();
                        long begin = Now();
                        Compute(10);
                        holds.Add("hold " + gettid() + " " + begin + " " + Now());
                    }
                }
            });
        }
        foreach (var thread in threads) thread.Start();
        held.WaitOne();
        Steps.Log.ConvoyStart();
        long from = Now();
        lock (gate) Console.WriteLine("waited " + gettid() + " " + from + " " + Now());
        Steps.Log.ConvoyStop();
        foreach (var thread in threads) thread.Join();
        foreach (var hold in holds) Console.WriteLine(hold);
    }

    static void Starve()
    {
        int workers, ports;
        ThreadPool.GetMinThreads(out workers, out ports);
        var release = new ManualResetEvent(false);
        var blocked = new CountdownEvent(workers);
        for (int i = 0; i < workers; i++)
        {
            ThreadPool.QueueUserWorkItem(_ => { blocked.Signal(); release.WaitOne(); });
        }
        blocked.Wait();
        var done = new ManualResetEvent(false);
        long started = 0;
        Steps.Log.StarveStart();
        long queued = Now();
        ThreadPool.QueueUserWorkItem(_ => { started = Now(); Compute(20); done.Set(); });
        done.WaitOne();
        Steps.Log.StarveStop();
        Console.WriteLine("queued " + queued + " " + started);
        release.Set();
    }

    // The CPU time of this thread and its time in run queues, as the kernel counts them.
    static long[] Schedstat()
    {
        int file = open("/proc/self/task/" + gettid() + "/schedstat", 0);
        var bytes = new byte[128];
        int size = (int)read(file, bytes, (IntPtr)bytes.Length);
        close(file);
        string[] fields = Encoding.ASCII.GetString(bytes, 0, size).Split(' ');
        return new[] { long.Parse(fields[0]), long.Parse(fields[1]) };
    }

    static void Preempted()
    {
        var thread = new Thread(() =>
        {
            if (sched_setaffinity(0, (IntPtr)8, new ulong[] { 1 }) != 0) throw new Exception("CPU 0");
            Schedstat(); // compiled before it counts
            Compute(20);
            Steps.Log.PreemptedStart();
            long[] before = Schedstat();
            long from = Now(), cpu = Clock(3);
            Compute(200);
            long to = Now(), cpu2 = Clock(3);
            long[] after = Schedstat();
            Steps.Log.PreemptedStop();
            Console.WriteLine("preempted " + (to - from) + " " + (cpu2 - cpu) + " "
                + (after[0] - before[0]) + " " + (after[1] - before[1]));
        });
        thread.Start();
        thread.Join();
    }

    // Waits of one kind, in nanoseconds: until another thread ended them, and from then until the waiting
    // thread ran again.
    sealed class Waits
    {
        long count, blocked, late;

        public void Add(long from, long ended)
        {
            late += Now() - ended;
            blocked += ended - from;
            count++;
        }
        public void Print(string word) { Console.WriteLine(word + " " + count + " " + blocked + " " + late); }
    }

    // One thread waits, the other one sleeps and ends its waits. Each is ended directly after a reading of
    // the clock.
    static void Waiting()
    {
        const int rounds = 5, pause = 40;
        var gate = new object();
        var turn = new AutoResetEvent(false);
        var answer = new AutoResetEvent(false);
        var results = new TaskCompletionSource<long>[rounds];
        for (int i = 0; i < rounds; i++) results[i] = new TaskCompletionSource<long>();
        var ends = new int[2];
        if (pipe(ends) != 0) throw new Exception("pipe");
        Waits turns = new Waits(), locking = new Waits(), joining = new Waits(), reading = new Waits();
        long given = 0, opened = 0;
        int tid = 0;

        var waiter = new Thread(() =>
        {
            var bytes = new byte[8];
            Schedstat(); // compiled before it counts
            Steps.Log.WaitsStart();
            long[] before = Schedstat();
            long start = Now();
            for (int i = 0; i < rounds; i++)
            {
                long from = Now();
                turn.WaitOne();
                turns.Add(from, given);
                from = Now();
                lock (gate) locking.Add(from, opened);
                from = Now();
                joining.Add(from, results[i].Task.Result);
                from = Now();
                read(ends[0], bytes, (IntPtr)bytes.Length);
                reading.Add(from, BitConverter.ToInt64(bytes, 0));
                answer.Set();
            }
            long end = Now();
            long[] after = Schedstat();
            Steps.Log.WaitsStop();
            Console.WriteLine("waiter " + gettid() + " " + (end - start) + " "
                + (after[0] - before[0]) + " " + (after[1] - before[1]));
        });
        var other = new Thread(() =>
        {
            tid = gettid();
            for (int i = 0; i < rounds; i++)
            {
                Thread.Sleep(pause);
                lock (gate)
                {
                    given = Now();
                    turn.Set();
                    Thread.Sleep(pause);
                    opened = Now();
                }
                Thread.Sleep(pause);
                results[i].SetResult(Now());
                Thread.Sleep(pause);
                write(ends[1], BitConverter.GetBytes(Now()), (IntPtr)8);
                answer.WaitOne();
            }
        });
        waiter.Start();
        other.Start();
        waiter.Join();
        other.Join();
        Console.WriteLine("waker " + tid);
        turns.Print("turns");
        locking.Print("locking");
        joining.Print("joining");
        reading.Print("reading");
    }

    // In nanoseconds; 0 before .NET 7.
    static long TotalPause()
    {
        var total = typeof(GC).GetMethod("GetTotalPauseDuration");
        return total == null ? 0 : ((TimeSpan)total.Invoke(null, null)).Ticks * 100;
    }

    static void Collections()
    {
        TotalPause(); // compiled before it counts
        int count = GC.CollectionCount(0);
        long pause = TotalPause();
        var kept = new List<object>();
        for (int i = 0; i < 24; i++)
        {
            for (int n = 0; n < 20000; n++) kept.Add(new int[n % 8]);
            GC.Collect(i % 3);
        }
        pause = TotalPause() - pause;
        Console.WriteLine("gc " + (GC.CollectionCount(0) - count) + " " + pause);
        GC.KeepAlive(kept);
    }

    static void Serve(Stream input)
    {
        var output = Console.OpenStandardOutput();
        long from = -1;
        while (input.ReadByte() >= 0)
        {
            if (from < 0) from = Clock(3);
            Steps.Log.ServeStart();
            Compute(40);
            Steps.Log.ServeStop();
            output.WriteByte((byte)'.');
            output.Flush();
        }
        Console.Error.WriteLine("served " + gettid() + " " + (Clock(3) - from));
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static long Work<T>(long iterations)
    {
        long x = 1;
        for (long i = 0; i < iterations; i++) x = x * 31 + i;
        return x;
    }
    [MethodImpl(MethodImplOptions.NoInlining)]
    static long Sixty() { long x = Work<string>(600000); return x + 1; }
    [MethodImpl(MethodImplOptions.NoInlining)]
    static long Thirty() { long x = Work<string>(300000); return x + 2; }
    [MethodImpl(MethodImplOptions.NoInlining)]
    static long Ten() { long x = Work<int>(100000); return x + 3; }

    // The numbers of iterations are not the shares: code that is not optimized yet is slower, and
    // each instantiation of Work is optimized at its own time.
    static void Shares()
    {
        long x = 0, sixty = 0, thirty = 0, ten = 0;
        for (int round = 0; round < 1500; round++)
        {
            long start = Clock(3);
            x += Sixty();
            long first = Clock(3);
            x += Thirty();
            long second = Clock(3);
            x += Ten();
            ten += Clock(3) - second;
            thirty += second - first;
            sixty += first - start;
        }
        File.WriteAllText(Path.Combine(Path.GetTempPath(), "shares"), sixty + " " + thirty + " " + ten);
        Console.WriteLine("done " + x);
        Console.Out.Flush();
        Environment.Exit(0);
    }

    static void Load(string path)
    {
        Assembly.LoadFrom(path).GetType("Lines").GetMethod("Run").Invoke(null, null);
    }

    public static void Run(string name)
    {
        if (name == "shares") Shares();
        if (name == "lines") Load(Environment.GetEnvironmentVariable("WORKLOAD_ASSEMBLY"));
        var log = Steps.Log;
        var input = Console.OpenStandardInput();
        Console.Error.WriteLine("workload answers:" + name + " runs");
        log.Enabled.WaitOne();
        switch (name)
        {
            case "clock": Ticks(); break;
            case "convoy": Convoy(); break;
            case "starve": Starve(); break;
            case "gc": Collections(); break;
            case "preempted": Preempted(); break;
            case "waits": Waiting(); break;
            case "serve": Serve(input); return;
        }
        Console.WriteLine("done");
        Console.Out.Flush();
        while (input.ReadByte() >= 0) { }
    }
}
