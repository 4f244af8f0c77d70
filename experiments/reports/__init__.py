"""Reports of studies: details of plans, figures, traces, pages."""
