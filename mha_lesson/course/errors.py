"""The one exception that is shown to people as it stands, without a traceback."""


class CourseError(Exception):
    """Something that the person at the keyboard can mend.

    `what` says what was expected and what came; `mend` says what to do now.
    """

    def __init__(self, what, mend=""):
        self.what = what
        self.mend = mend
        super().__init__(str(self))

    def __str__(self):
        return f"{self.what} To mend: {self.mend}" if self.mend else self.what
