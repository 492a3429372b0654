//! `triscope completions` and `triscope man`: shell completions and manual pages, generated from
//! the arguments.

use crate::failure::{Failure, Result};
use clap::Command;
use clap_complete::Shell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Print shell completions
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope completions bash > ~/.local/share/bash-completion/completions/triscope
  triscope completions fish > ~/.config/fish/completions/triscope.fish")]
pub(crate) struct Completions {
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self, mut program: Command) -> Result {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut program, "triscope", &mut text);
        io::stdout().write_all(&text).map_err(|error| Failure::output(&error))
    }
}

/// Print the manual page, or write the pages of all commands to a directory
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope man | man -l -
  triscope man ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// Output directory for the pages of all commands
    #[arg(value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(&self, mut program: Command) -> Result {
        let Some(directory) = &self.directory else {
            let mut page = Vec::new();
            clap_mangen::Man::new(program).render(&mut page).map_err(Failure::new)?;
            return io::stdout().write_all(&page).map_err(|error| Failure::output(&error));
        };
        // Pages are named after the full command: triscope-go-stats.
        program.build();
        std::fs::create_dir_all(directory)
            .map_err(|error| Failure::about(directory.display(), error))?;
        pages(&program, directory)
    }
}

fn pages(command: &Command, directory: &Path) -> Result {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = directory.join(format!("{name}.1"));
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut page)
        .and_then(|()| std::fs::write(&path, page))
        .map_err(|error| Failure::about(path.display(), error))?;
    command
        .get_subcommands()
        .filter(|command| command.get_name() != "help" && !command.is_hide_set())
        .try_for_each(|command| pages(command, directory))
}
