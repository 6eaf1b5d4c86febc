"""Plugins for the tests of frameworks, which run with perdure in place; their tests are fetched and not kept."""
