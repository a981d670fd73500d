"""Tables of labels: what is read from them, the one-line errors, files of slides, and splits by patient."""

from pathlib import Path

import pytest

from inline_attention.data.labels_table import match_slides, read_labels, slide_name, split_patients


def write(folder: Path, text: str) -> Path:
    path = folder / "labels.csv"
    path.write_text(text)
    return path


def test_classes_with_patients_and_splits(tmp_path):
    text = "case_id,slide_id,label,split\np1,a.svs,tumour,train\np1,b,normal,training\np2,c.h5,tumour,Validation\n"
    table = read_labels(write(tmp_path, text))
    assert (table.target, table.classes, table.splits) == ("class", ("normal", "tumour"), ("train", "val"))
    assert [(row.slide, row.target, row.patient, row.split) for row in table.rows] == [
        ("a", 1, "p1", "train"),
        ("b", 0, "p1", "train"),
        ("c", 1, "p2", "val"),
    ]


@pytest.mark.parametrize(
    ("text", "target", "classes", "targets"),
    [
        ("slide,er,pr\na,0,1\nb,1,1\n", "labels", ("er", "pr"), [(0.0, 1.0), (1.0, 1.0)]),
        ("slide;score\na;0.5\nb;3\n", "number", ("score",), [0.5, 3.0]),
        ("\ufeffSlide_ID\tgrade\na\t10\nb\t9\n", "class", ("9", "10"), [1, 0]),
        ("image,age,label\na,60,x\nb,61.5,y\n", "class", ("x", "y"), [0, 1]),
    ],
)
def test_the_kind_follows_from_the_values(tmp_path, text, target, classes, targets):
    table = read_labels(write(tmp_path, text))
    assert (table.target, table.classes, [row.target for row in table.rows]) == (target, classes, targets)


def test_columns_and_target_may_be_chosen(tmp_path):
    path = write(tmp_path, "slide,age,grade\na,60,1\nb,61,2\nc,70,1\n")
    assert read_labels(path, ["age"], "number").rows[2].target == 70.0
    assert read_labels(path, ["grade"]).classes == ("1", "2")
    assert read_labels(path, ["grade"], classes=("2", "1", "0")).rows[0].target == 1  # a model's order


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slide,label\n", "no slides"),
        ("what,label\na,1\n", "no column that names the slide.*what, label"),
        ("slide\na\nb\n", "no column with labels"),
        ("slide,x,y\na,0,z\nb,1,z\n", r"several columns.*x, y.*--data.columns"),
        ("slide,label\na,x\na.svs,y\n", "line 3: the slide a has a line already"),
        ("slide,label\na,x\nb\n", "line 3: 1 columns, and the header has 2"),
        ("slide,label\na,x\nb,\n", "line 3: the column label is empty"),
        ("slide,label\n,x\nb,y\n", "line 2: the column slide is empty"),
        ("slide,label\na,x\nb,x\n", "1 classes"),
        ("slide,label,label\na,x,y\nb,x,y\n", "two columns 'label'"),
        ("slide,patient,label,split\na,p,x,train\nb,p,y,test\n", "patient p is in two splits, train with a and test with b"),
        ("slide,label\n" + "".join(f"s{n},{n}\n" for n in range(30)), "30 different whole numbers.*--task.target"),
        ('slide,label\na,"x\n', "line"),
        ("slide,label\na,\x00\n", "zero bytes"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_labels(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_wrong_choices_are_one_line(tmp_path):
    path = write(tmp_path, "slide,age,grade\na,60,1\nb,x,2\n")
    with pytest.raises(ValueError, match="no column 'size'; there are: slide, age, grade"):
        read_labels(path, ["size"])
    with pytest.raises(ValueError, match="line 3: age must be a number, got 'x'"):
        read_labels(path, ["age"], "number")
    with pytest.raises(ValueError, match="line 3: grade must be 0 or 1, got '2'"):
        read_labels(path, ["grade"], "labels")
    with pytest.raises(ValueError, match="a class '2', and the model knows others: 1, 3"):
        read_labels(path, ["grade"], classes=("1", "3"))
    with pytest.raises(ValueError, match=r"none.csv cannot be read: No such file"):
        read_labels(tmp_path / "none.csv")


def test_files_are_found_by_the_name_of_the_slide(tmp_path):
    table = read_labels(write(tmp_path, "slide,label\na.svs,x\nb.1,y\nc,y\n"))
    files = [tmp_path / "b.1.h5", tmp_path / "a.h5", tmp_path / "other.h5"]
    with pytest.raises(ValueError, match=r"no file of the slide c of .*--skip-bad"):
        match_slides(table, files, tmp_path)
    found = match_slides(table, files, tmp_path, skip_missing=True)
    assert [file.name for file in found.files] == ["a.h5", "b.1.h5"]
    assert [row.slide for row in found.table.rows] == ["a", "b.1"]
    assert (found.unlabelled, len(found.bad)) == (1, 1)
    with pytest.raises(ValueError, match="both of the slide a"):
        match_slides(table, [*files, tmp_path / "more" / "a.h5"], tmp_path)
    with pytest.raises(ValueError, match="no file of any slide"):
        match_slides(table, [tmp_path / "z.h5"], tmp_path)
    assert slide_name("x/y/a.ome.tiff") == "a"
    assert slide_name(".h5") == ".h5"


def test_a_patient_is_never_in_two_splits(tmp_path):
    lines = [f"s{n},p{n // 2},{'xyz'[n // 2 % 3]}\n" for n in range(60)]
    table = read_labels(write(tmp_path, "slide,patient,label\n" + "".join(lines)))
    train, val = split_patients(table.rows, 0.2, tmp_path, stratify=True)
    assert sorted(train + val) == list(range(60))
    assert not {table.rows[i].patient for i in train} & {table.rows[i].patient for i in val}
    assert [sum(table.rows[i].target == label for i in val) for label in range(3)] == [4, 4, 4]
    backwards = split_patients(table.rows[::-1], 0.2, tmp_path, stratify=True)[1]
    assert {table.rows[::-1][i].slide for i in backwards} == {table.rows[i].slide for i in val}  # whatever the order
    with pytest.raises(ValueError, match="1 patients are too few"):
        split_patients(table.rows[:2], 0.2, tmp_path, stratify=False)
