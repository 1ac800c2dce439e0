"""Random expressions of each level: `draws` has the tools, one file per subject the distributions."""
