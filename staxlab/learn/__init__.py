"""Exercises that answer back: a frame in which a question, its truth and its typical mistakes are data.

For students, in a notebook or a terminal::

    from staxlab import learn

    learn.statement("ex01", student="ada")      # the question, with this student's values
    learn.check("ex01.1", student="ada", eager_bytes="8*C*n*b + n*b")
    learn.hint("ex01.1", student="ada")         # one more hint each time
    learn.check("ex01", globals(), student="ada")   # whatever of the declared fields is there

``check`` says for every field whether it is right, nearly right and why, or wrong with a counterexample. Answers,
feedback and hints go to the student's own record (``$STAXLAB_LEARN_DIR``, else ``~/.staxlab/learn``). Values differ
from student to student. ``student=`` may be left out where a variable ``student`` in the notebook or script, or
``$STAXLAB_STUDENT``, says who is asking; where nothing does, the values are the chapter's, and a note says so.

Writing an exercise
===================

One module, ``staxlab/learn/exercises/exNN.py``; it is found by its name. Then ``python -m staxlab.learn.notebook``
writes the notebooks anew, and ``tests/exercises`` runs everything below for every exercise there is. A whole one::

    \"\"\"Exercise 16 (Section 6.5): how far the order of a sum can take it from the truth.\"\"\"

    SECTION, TITLE, DIFFICULTY = 6, "Error bounds of four summations", 1

    statement = "Let `n` numbers be added ... (markdown, your own words)"

    @dataclass(frozen=True)
    class Variant(BaseVariant):
        segments: int = 16
        @classmethod
        def draw(cls, rng):                       # one per student, from a seed
            return cls(segments=rng.choice((8, 16, 32)))
        def constants(self):                      # names students may use in formulas
            return {"k": Fraction(self.segments)}

    PARTS = (
        Part("1", "Coefficients", "As a function of $n$ ...",
             fields=(FormulaIn("segmented", "coefficient of the bound", 2, example='"3*n + k"'),),
             hints=("Gentlest first.", "More.")),
    )

    def check(variant, answers, seed):            # a judge per field; truth is computed, never typed in
        return {"segmented": same_quantity(lambda n: ..., {"n": integers(1, 4096)}, seed=seed,
                                           slips=[Slip("whole-length", lambda n: ..., "You took all n ...")])}

    def reference(variant):                       # full marks
        return {"segmented": "..."}

    def wrong_answers(variant):                   # two or more, each recognised by name
        return (WrongAnswer("whole-length", {"segmented": "n - 1"}, ("segmented",)), ...)

What the tests ask of every exercise, for the chapter's values and for several students: the reference gets full marks,
nothing at all gets zero, each wrong answer loses points in the fields it says and is named, every systematic
perturbation of the reference (:mod:`~staxlab.learn.mutation`) is rejected, and the notebook executes with both. Where
a perturbed reference function is still right, a module attribute ``HARMLESS`` says so (see ``ex01_answers``).
Functions in a reference answer are written at module level and use only their arguments: their source is put into
the notebook.

Proofs are taken apart into claims that can run, and a rubric for the rest:

* a statement about all inputs: ``for_all``, a search for a counterexample that is then made small (``claims``);
* an existence claim: ``construction``, which builds what the student describes and judges it by brute force (in
  ``schedules``: a kernel for the two-level ``machine``, which counts transfers);
* a derivation: ``derivation``, each step refuted by numbers or proved with SymPy (``algebra``);
* the argument in words: a ``Prose`` field with a ``Rubric``.

=================  =====================================================================================================
module             what it knows
=================  =====================================================================================================
``frame``          the verbs: check, hint, statement, rubric, history
``exercise``       what an exercise is; discovery
``answers``        typed answer fields, and what to say about a malformed answer
``judges``         from an answer to a verdict
``feedback``       verdicts, points per part, the terminal text; ``render`` the same as HTML
``formula``        formulas as text, parsed without eval, computed exactly
``algebra``        chains of steps; the only module that uses SymPy
``claims``         counterexample search with shrinking
``machine``        a two-level memory that counts transfers
``schedules``      Proposition 1.1 as claims that run on it
``data_sizes``     following a program whose sizes depend on data, and what it decides about them
``dispatching``    compiled versions under a key, guards or gates that are broken on purpose
``slicing``        graphs that count how they are walked, for Algorithm 3.1
``networks``       rematerialization networks and feasible sets on compiled programs, for Definitions 5.1 and 5.2
``fusion_graphs``  graphs of kernels and partitions of their nodes, as students write them, for Definition 7.3
``rubrics``        what a reader looks for in prose
``limits``         calling student functions with a time limit
``variants``       from a student to a seed to values
``records``        the student's file
``truth``          right answers from the package's own models
``mutation``       perturbed answers that a checker must reject
``notebook``       the builder of ``exercises/*.ipynb``
=================  =====================================================================================================
"""

from __future__ import annotations

from .exercise import Exercise, LearnError, load
from .feedback import Feedback
from .frame import catalogue, check, hint, history, rubric, statement, values

__all__ = [
    "Exercise",
    "Feedback",
    "LearnError",
    "catalogue",
    "check",
    "hint",
    "history",
    "load",
    "rubric",
    "statement",
    "values",
]
