"""Reports of studies: tables, findings, pages of plans."""
