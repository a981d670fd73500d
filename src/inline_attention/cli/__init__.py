"""The command `inline`: the only room that parses arguments and prints. Commands import what they need when they run."""
