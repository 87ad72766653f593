"""Built-in suites, as paths to their TOML files."""

from pathlib import Path

QUICK = Path(__file__).with_name("quick.toml")
FULL = Path(__file__).with_name("full.toml")
RAP_REMEDIES = Path(__file__).with_name("rap_remedies.toml")
