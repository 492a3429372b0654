// The mode answers:lines: three methods call a fourth one, which computes. Writes the lines of their stacks, as
// the runtime's own reader of PDB files has them, to the file WORKLOAD_OUTPUT. Waits for nothing, and ends.
//
// Lines of the file: "METHOD CALLEE LINE FILE".
using System;
using System.Diagnostics;
using System.IO;
using System.Runtime.CompilerServices;

public static class Lines
{
    static readonly TextWriter output =
        new StreamWriter(Environment.GetEnvironmentVariable("WORKLOAD_OUTPUT"));
    static long count;

    [MethodImpl(MethodImplOptions.NoInlining)]
    static long Spin(long rounds, bool report)
    {
        long x = 1;
        for (long i = 0; i < rounds; i++) x = x * 31 + i; // spins
        if (report) Report();
        return x; // of Spin
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static long One(long rounds, bool report)
    {
        long x = 0;
        for (int i = 0; i < 3; i++)
        {
            x += Spin(rounds, report);
            x ^= rounds;
        }
        return x + 1;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static long Two(long rounds, bool report)
    {
        if (rounds == 0) return 0;
        long x = Spin(rounds, report);

        long y = Spin(2 * rounds, report);
        return x + y;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static long Three<T>(long rounds, bool report)
    {
        try
        {
            return Spin(rounds, report) / rounds;
        }
        finally
        {
            count++;
        }
    }

    static void Report()
    {
        StackFrame[] frames = new StackTrace(true).GetFrames();
        for (int i = 2; i < frames.Length; i++)
        {
            var method = frames[i].GetMethod();
            if (method.DeclaringType != typeof(Lines)) break;
            var callee = frames[i - 1].GetMethod().Name;
            var place = frames[i].GetFileLineNumber() + " " + frames[i].GetFileName();
            output.WriteLine(method.Name + " " + callee + " " + place);
        }
    }

    public static void Run()
    {
        long x = 0;
        for (int round = 0; round <= 1000; round++)
        {
            // The first code, and later the optimised one.
            bool report = round == 0 || round == 1000;
            x += One(200000, report);
            x += Two(200000, report);
            x += Three<string>(200000, report);
        }
        output.Dispose();
        Environment.Exit(x + count == 0 ? 1 : 0);
    }
}
