"""Laws that always pay: arithmetic, layout, comparisons, domains, equal equations."""
