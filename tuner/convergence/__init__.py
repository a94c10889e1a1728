"""The accuracy of a framework's default: recorded references, and whether a run follows one."""
