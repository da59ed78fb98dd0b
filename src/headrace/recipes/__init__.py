"""How samples go from form to form: frozen definitions, and the code that runs them."""

from headrace.recipes.calls import deterministic
from headrace.recipes.compile import compile_recipe
from headrace.recipes.fields import fields
from headrace.recipes.program import Fault, Program, Work
from headrace.recipes.recipe import Recipe
from headrace.recipes.views import views

__all__ = ["Fault", "Program", "Recipe", "Work", "compile_recipe", "deterministic", "fields", "views"]
