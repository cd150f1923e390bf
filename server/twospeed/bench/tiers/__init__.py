"""`twospeed bench tiers`: does one service tier keep its speed on a model while others use it, and who pays."""
