use crate::{Provider, Rundown};

/// A named set of providers, with the names that `dotnet-trace` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderPreset {
    /// Its name.
    pub name: &'static str,
    /// Its purpose.
    pub help: &'static str,
    /// Its providers, in their text form.
    providers: &'static [&'static str],
    /// Its rundown keywords, if they are not the default ones.
    rundown: Option<u64>,
}

impl ProviderPreset {
    /// The preset with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        PROVIDER_PRESETS.iter().find(|p| p.name.eq_ignore_ascii_case(name))
    }

    /// The providers that it enables.
    pub fn providers(&self) -> Vec<Provider> {
        self.providers.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// The rundown required to resolve its events, at the lowest cost.
    ///
    /// Only .NET 9 and later support rundown keywords.
    pub fn rundown(&self) -> Rundown {
        self.rundown.map_or(Rundown::Default, Rundown::Keywords)
    }

    /// Adds the providers of `more` that are not in `providers`. Of several providers with the same
    /// name the first one is used and the others are dropped, as with `dotnet-trace --providers` and
    /// `--profile`. A provider that several presets have is to be joined before: its keywords add up.
    pub fn merge(
        mut providers: Vec<Provider>,
        more: impl IntoIterator<Item = Provider>,
    ) -> Vec<Provider> {
        for provider in more {
            if providers.iter().all(|p| !p.name.eq_ignore_ascii_case(&provider.name)) {
                providers.push(provider);
            }
        }
        providers
    }
}

/// The runtime keywords required to resolve samples: GC, loader, JIT, NGEN, exceptions, contention,
/// threading, and compilation details.
const RUNTIME_DEFAULT: &str = "Microsoft-Windows-DotNETRuntime:0x14C14FCCBD:4";

/// All presets.
pub const PROVIDER_PRESETS: &[ProviderPreset] = &[
    ProviderPreset {
        name: "cpu-sampling",
        help: "where managed threads spend their time: a stack of each every millisecond, and runtime events",
        providers: &["Microsoft-DotNETCore-SampleProfiler:0xF00000000000:4", RUNTIME_DEFAULT],
        rundown: None,
    },
    ProviderPreset {
        name: "dotnet-common",
        help: "runtime events of low overhead: GC, loader, JIT, exceptions, threading",
        providers: &["Microsoft-Windows-DotNETRuntime:0x100003801D:4"],
        rundown: None,
    },
    ProviderPreset {
        name: "dotnet-sampled-thread-time",
        help: "stacks of managed threads, running or waiting, without runtime events",
        providers: &["Microsoft-DotNETCore-SampleProfiler:0x0:4"],
        rundown: None,
    },
    ProviderPreset {
        name: "gc-verbose",
        help: "garbage collections, GC handles, exceptions, and sampled allocations",
        providers: &["Microsoft-Windows-DotNETRuntime:0x8003:5"],
        rundown: None,
    },
    ProviderPreset {
        name: "gc-collect",
        help: "garbage collections only, at very low overhead",
        providers: &[
            "Microsoft-Windows-DotNETRuntime:0x1:4",
            "Microsoft-Windows-DotNETRuntimePrivate:0x1:4",
        ],
        rundown: Some(0x1),
    },
    ProviderPreset {
        name: "database",
        help: "commands of ADO.NET and Entity Framework",
        providers: &[
            "System.Threading.Tasks.TplEventSource:0x80:4",
            "Microsoft-Diagnostics-DiagnosticSource:0x3:5:FilterAndPayloadSpecs=\"\
             SqlClientDiagnosticListener/System.Data.SqlClient.WriteCommandBefore@Activity1Start:\
             -Command;Command.CommandText;ConnectionId;Operation;Command.Connection.ServerVersion;\
             Command.CommandTimeout;Command.CommandType;Command.Connection.ConnectionString;\
             Command.Connection.Database;Command.Connection.DataSource;Command.Connection.PacketSize\r\n\
             SqlClientDiagnosticListener/System.Data.SqlClient.WriteCommandAfter@Activity1Stop:\r\n\
             Microsoft.EntityFrameworkCore/Microsoft.EntityFrameworkCore.Database.Command.CommandExecuting@Activity2Start:\
             -Command.CommandText;Command;ConnectionId;IsAsync;Command.Connection.ClientConnectionId;\
             Command.Connection.ServerVersion;Command.CommandTimeout;Command.CommandType;\
             Command.Connection.ConnectionString;Command.Connection.Database;\
             Command.Connection.DataSource;Command.Connection.PacketSize\r\n\
             Microsoft.EntityFrameworkCore/Microsoft.EntityFrameworkCore.Database.Command.CommandExecuted@Activity2Stop:\"",
        ],
        rundown: None,
    },
];

/// The keywords of `Microsoft-Windows-DotNETRuntime`, by the names of `dotnet-trace --clrevents`.
pub const RUNTIME_KEYWORDS: &[(&str, u64)] = &[
    ("gc", 0x1),
    ("gchandle", 0x2),
    ("assemblyloader", 0x4),
    ("fusion", 0x4),
    ("loader", 0x8),
    ("jit", 0x10),
    ("ngen", 0x20),
    ("startenumeration", 0x40),
    ("endenumeration", 0x80),
    ("security", 0x400),
    ("appdomainresourcemanagement", 0x800),
    ("jittracing", 0x1000),
    ("interop", 0x2000),
    ("contention", 0x4000),
    ("exception", 0x8000),
    ("threading", 0x1_0000),
    ("jittedmethodiltonativemap", 0x2_0000),
    ("overrideandsuppressngenevents", 0x4_0000),
    ("type", 0x8_0000),
    ("gcheapdump", 0x10_0000),
    ("gcsampledobjectallocationhigh", 0x20_0000),
    ("gcheapsurvivalandmovement", 0x40_0000),
    ("managedheapcollect", 0x80_0000),
    ("gcheapcollect", 0x80_0000),
    ("gcheapandtypenames", 0x100_0000),
    ("gcsampledobjectallocationlow", 0x200_0000),
    ("perftrack", 0x2000_0000),
    ("stack", 0x4000_0000),
    ("threadtransfer", 0x8000_0000),
    ("debugger", 0x1_0000_0000),
    ("monitoring", 0x2_0000_0000),
    ("codesymbols", 0x4_0000_0000),
    ("eventsource", 0x8_0000_0000),
    ("compilation", 0x10_0000_0000),
    ("compilationdiagnostic", 0x20_0000_0000),
    ("methoddiagnostic", 0x40_0000_0000),
    ("typediagnostic", 0x80_0000_0000),
    ("jitinstrumentationdata", 0x100_0000_0000),
    ("profiler", 0x200_0000_0000),
    ("waithandle", 0x400_0000_0000),
    ("allocationsampling", 0x800_0000_0000),
];

/// Parses a list of keywords such as `gc+jit+exception`.
///
/// # Errors
///
/// The unknown name.
pub fn runtime_keywords(names: &str) -> Result<u64, &str> {
    names.split('+').map(str::trim).try_fold(0, |keywords, name| {
        RUNTIME_KEYWORDS
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, keyword)| keywords | keyword)
            .ok_or(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn every_profile_is_well_formed() {
        for profile in PROVIDER_PRESETS {
            assert_eq!(profile.providers().len(), profile.providers.len(), "{}", profile.name);
        }
        let database = ProviderPreset::find("DATABASE").unwrap().providers();
        assert_eq!(database[1].level, Level::Verbose);
        assert!(database[1].arguments.ends_with("Activity2Stop:\""));
        assert_eq!(ProviderPreset::find("gc-collect").unwrap().rundown(), Rundown::Keywords(1));
        assert!(ProviderPreset::find("unknown").is_none());
    }

    #[test]
    fn keywords_by_name() {
        assert_eq!(runtime_keywords("gc+JIT + exception"), Ok(0x8011));
        assert_eq!(runtime_keywords("gc+fuel"), Err("fuel"));
    }

    #[test]
    fn explicit_providers_come_first() {
        let own = Provider::new("microsoft-windows-dotnetruntime").keywords(1);
        let cpu = ProviderPreset::find("cpu-sampling").unwrap();
        let merged = ProviderPreset::merge(vec![own.clone()], cpu.providers());
        assert_eq!(merged.len(), 2);
        assert_eq!(merged[0], own);
        assert_eq!(merged[1].name, "Microsoft-DotNETCore-SampleProfiler");
    }
}
