"""The command line of the course: `python3 -m mha_lesson WORD`.

Read in this order:

1. `cli.py`           which word starts what
2. `requirements.py`  is what the course needs installed here?
3. `bootstrap.py`     if not: `install.py` makes `.venv`, and the command starts again inside it
4. `lab.py`           open JupyterLab at the learner's own copy of the first lesson
5. `copies.py`        those copies: made once, never overwritten
6. `kernel.py`        notebooks find the course in every environment, whoever starts them
7. `doctor.py`        what works on this machine, and how to mend what does not
8. `suite.py`         run tests/, then compare every stored output of the notebooks
9. `refresh.py`       run notebooks again and store their outputs, cleaned by `clean.py`
10. `lint.py`         rules that every stored notebook keeps

Modules 1-8 and 10 use the standard library alone: they run before anything is installed.
"""
