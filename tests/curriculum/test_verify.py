import pytest

from dagnn.curriculum.parsing import parse
from dagnn.curriculum.verdict import confirmed

RIGHT = [
    (1, "(/ 84 -36)", "(/ -7 3)"),
    (2, "(+ (/ (- 10 -6) (+ 10 -15)) (* -17 12))", "(/ -1036 5)"),
    (3, "(subst (subst (^ (+ x y) 2) x 5) y -2)", "9"),
    (4, "(* (log 9) (/ 12 (cos 19)))", "26.7"),
    (4, "(sin 0)", "0"),
    (5, "(derive (* x (sin x)) x)", "(+ (sin x) (* x (cos x)))"),
    (5, "(derive (log (- x 5)) x)", "(/ 1 (+ x -5))"),
    (5, "(derive (exp (- (+ 4 x) (* -7 -8))) x)", "(exp (+ x -52))"),
    (5, "(derive (+ 1 (exp (- x 52))) x)", "(exp (+ x -52))"),
    (5, "(derive (+ x (exp 30)) x)", "1"),
    (5, "(derive (- x x) x)", "0"),
    (6, "(integrate (* 3 (^ x 2)) x 0 2)", "8"),
    (6, "(integrate (^ x 4) x -5 5)", "1250"),
    (6, "(integrate (/ 1 x) x)", "(log x)"),
    (7, "(solve (= (+ (* 2 x) 5) 13) x)", "4"),
    (7, "(solve (= (^ x 2) 9) x)", "(roots -3 3)"),
    (7, "(solve (= (+ (^ x 2) (* -4 x)) -4) x)", "2"),
    (7, "(solve (= (/ x 3) (/ 1 2)) x)", "(/ 3 2)"),
    (7, "(solve (= (* 2 (^ x 2)) (* 2 x)) x)", "(roots 0 1)"),
]
WRONG = [
    (1, "(/ 84 -36)", "(/ 7 -3)"),
    (1, "(/ 84 -36)", "(/ -14 6)"),
    (1, "(/ 84 -36)", "(/ -8 3)"),
    (1, "(+ 1 1)", "x"),
    (1, "(/ 5 0)", "5"),
    (2, "(+ (* 2 3) 4)", "11"),
    (3, "(subst (^ (+ x 3) 2) x 5)", "65"),
    (4, "(sin 3)", "0.142"),
    (4, "(log 0)", "0"),
    (5, "(derive (^ x 2) x)", "x"),
    (5, "(derive (^ x 2) x)", "(* 2.0001 x)"),
    (5, "(derive (log (- x x)) x)", "0"),
    (5, "(derive (exp (- (+ 4 x) (* -7 -8))) x)", "0"),
    (5, "(derive (+ 1 (exp (- x 52))) x)", "0"),
    (5, "(derive (+ x (exp 30)) x)", "2"),
    (5, "(derive (* x (exp (- 0 40))) x)", "0"),
    (5, "(derive (sqrt (- -9 (/ x x))) x)", "0"),  # no real value anywhere
    (6, "(integrate (* 3 (^ x 2)) x 0 2)", "9"),
    (6, "(integrate (/ 1 x) x)", "(log (+ x 1))"),
    (7, "(solve (= (+ (* 2 x) 5) 13) x)", "5"),
    (7, "(solve (= (^ x 2) 9) x)", "3"),
    (7, "(solve (= (^ x 2) 9) x)", "(roots 3 -3)"),
    (7, "(solve (= (^ x 2) 9) x)", "(roots 3 3)"),
    (7, "(solve (= (^ x 2) 9) x)", "(roots -3 0 3)"),
    (7, "(solve (= (^ x 3) (* 4 x)) x)", "(roots 0 2)"),
    (7, "(solve (= x x) x)", "4"),
    (7, "(solve (= x 2) x)", "(/ 4 2)"),
    (7, "(solve (= x 2) x)", "y"),
    # What the second route does not read, it does not confirm.
    (2, "(+ 1 2 3)", "3"),
    (2, "(- 3)", "-3"),
    (2, "(+ (sqrt 4) 1)", "3"),
    (3, "(subst (+ x y) x 5)", "5"),
    (3, "(^ 4 (/ 1 2))", "2"),
    (6, "(integrate (* y x) x 0 2)", "2"),
    (7, "(solve (= x y) x)", "2"),
    (7, "(solve (= (sin x) 0) x)", "0"),
]


@pytest.mark.parametrize(("level", "text", "answer"), RIGHT)
def test_right_answers_are_confirmed(level, text, answer):
    assert confirmed(level, parse(text), parse(answer))


@pytest.mark.parametrize(("level", "text", "answer"), WRONG)
def test_wrong_answers_are_not(level, text, answer):
    assert not confirmed(level, parse(text), parse(answer))
