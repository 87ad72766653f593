"""Built-in suites, as paths to their TOML files."""

from pathlib import Path

QUICK = Path(__file__).with_name("quick.toml")
FULL = Path(__file__).with_name("full.toml")
RAP_REMEDIES = Path(__file__).with_name("rap_remedies.toml")
FEDONCE_TABLES = Path(__file__).with_name("fedonce_tables.toml")
FEDONCE_SMALL = Path(__file__).with_name("fedonce_small.toml")
APC_VFL_REMEDIES = Path(__file__).with_name("apc_vfl_remedies.toml")
VFEDSEC_REMEDIES = Path(__file__).with_name("vfedsec_remedies.toml")
LABEL_INFERENCE = Path(__file__).with_name("label_inference.toml")
MEMBERSHIP = Path(__file__).with_name("membership.toml")
TABVFL_LATENT = Path(__file__).with_name("tabvfl_latent.toml")
TABVFL_REMEDIES = Path(__file__).with_name("tabvfl_remedies.toml")
