// Programs with known answers: the modes answers:NAME. Each waits until its event source is enabled,
// then does something whose times it measures itself, prints them on standard output, and ends when
// standard input does.
//
//   answers:clock    1000 events, each directly before a system call
//   answers:convoy   threads that compute within one lock; a request needs the lock too
//   answers:starve   all workers of the thread pool are blocked; a request queues a work item
//   answers:serve    computes 40 ms for each byte of standard input, and answers with a byte; prints
//                    the CPU time of its thread on standard error
//
// Lines of output: a word and numbers; times are nanoseconds, points in time those of
// CLOCK_MONOTONIC.
using System;
using System.Collections.Generic;
using System.Diagnostics.Tracing;
using System.IO;
using System.Runtime.InteropServices;
using System.Threading;

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

    public static void Run(string name)
    {
        var log = Steps.Log;
        var input = Console.OpenStandardInput();
        Console.Error.WriteLine("workload answers:" + name + " runs");
        log.Enabled.WaitOne();
        switch (name)
        {
            case "clock": Ticks(); break;
            case "convoy": Convoy(); break;
            case "starve": Starve(); break;
            case "serve": Serve(input); return;
        }
        Console.WriteLine("done");
        Console.Out.Flush();
        while (input.ReadByte() >= 0) { }
    }
}
