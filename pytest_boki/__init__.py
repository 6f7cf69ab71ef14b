"""The pytest plugin that comes with Boki; pytest finds it by itself. It stands outside of the package `boki`, so that
tests of other things do not import that.
"""
