"""The subcommands of `cutwater`, by what they do; `cutwater.cli` puts them together."""
