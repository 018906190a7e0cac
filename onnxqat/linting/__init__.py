"""Reading QDQ files critically: defects (lint), what stands where and why (explain), and what two files differ in (diff)."""
