"""A launch over several nodes: node 0 leads, the others follow, and a store connects them."""
