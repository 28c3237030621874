"""The launchers of several nodes: where they meet, node 0 that leads, the others that follow."""
