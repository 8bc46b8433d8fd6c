"""What pyproject.toml cannot say: a wheel brings the notebooks and the data along, inside the package.

In a clone they lie beside `mha_lesson/`; `mha_lesson/places.py` finds them in both places.
"""

from setuptools import find_packages, setup

SHIPPED = "mha_lesson._shipped"

setup(
    packages=[*find_packages(include=["mha_lesson", "mha_lesson.*"]), f"{SHIPPED}.notebooks", f"{SHIPPED}.data"],
    package_dir={f"{SHIPPED}.notebooks": "notebooks", f"{SHIPPED}.data": "data"},
    package_data={
        "mha_lesson": ["**/*.js"],
        f"{SHIPPED}.notebooks": ["*.ipynb"],
        # LICENSE-*.txt are among them: other people's data travels with its licence.
        f"{SHIPPED}.data": ["*.md", "*.npz", "*.tsv", "*.txt", "*/*.md", "*/*.json", "*/*.safetensors"],
    },
    include_package_data=False,
)
