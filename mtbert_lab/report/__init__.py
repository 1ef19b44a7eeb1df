"""The report: notebooks executed and built into pages, figures, tables, the papers' claims."""
