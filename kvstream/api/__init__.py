"""The Python API of `import kvstream`: models, memories, answers. The command line uses it too."""
