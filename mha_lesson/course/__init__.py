"""The command line of the course: `python3 -m mha_lesson lab | test | doctor | refresh`.

Read in this order:

1. `cli.py`           which word starts what
2. `requirements.py`  is what the course needs installed here?
3. `bootstrap.py`     if not: `install.py` makes `.venv`, and the command starts again inside it
4. `lab.py`           open JupyterLab at the first notebook
5. `suite.py`         run tests/, then compare every stored output of the notebooks
6. `refresh.py`       run notebooks again and store their outputs, cleaned by `clean.py`
7. `lint.py`          rules that every stored notebook keeps
8. `doctor.py`        what works on this machine, and how to mend what does not

Modules 1-5 and 8 use the standard library alone: they run before anything is installed.
"""
