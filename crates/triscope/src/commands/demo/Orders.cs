// Orders: threads that take a lock, allocate, and wait for a thread pool. Starts the program that it
// is given, with its arguments, and waits for it.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Threading;
using System.Threading.Tasks;

static class Orders
{
    const int Clerks = 3;
    static readonly TimeSpan Duration = TimeSpan.FromSeconds(2);
    static readonly object Book = new object();
    static readonly List<byte[]> Kept = new List<byte[]>();
    static readonly Stopwatch Clock = Stopwatch.StartNew();
    static long written;

    static int Main(string[] args)
    {
        Process other = null;
        if (args.Length > 0)
        {
            var start = new ProcessStartInfo(args[0]) { UseShellExecute = false };
            for (int i = 1; i < args.Length; i++) start.ArgumentList.Add(args[i]);
            other = Process.Start(start);
        }
        var clerks = new Thread[Clerks];
        for (int i = 0; i < Clerks; i++)
        {
            clerks[i] = new Thread(Serve) { Name = "clerk " + i };
            clerks[i].Start(i);
        }
        foreach (var clerk in clerks) clerk.Join();
        if (other != null) other.WaitForExit();
        return other == null ? 0 : other.ExitCode;
    }

    // A clerk checks an order in the thread pool, and writes it into the book.
    static void Serve(object number)
    {
        var random = new Random((int)number);
        while (Clock.Elapsed < Duration)
        {
            int size = random.Next(2000, 20000);
            Task<int> check = Task.Run(() => Check(size));
            Record(check.Result, size);
            Thread.Sleep(random.Next(3));
        }
    }

    static int Check(int size)
    {
        int sum = 0;
        for (int i = 0; i < size * 20; i++) sum = sum * 31 + i;
        return sum;
    }

    static void Record(int sum, int size)
    {
        lock (Book)
        {
            written += sum;
            Kept.Add(new byte[size]);
            if (Kept.Count > 500) Kept.Clear();
            Check(size / 2);
        }
    }
}
