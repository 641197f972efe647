"""examples/gpt2: that a small model learns its sentences on the NPU with one configuration, that a
resumed run goes on as if it had not stopped, the sizes of the paper, errors of products within
their arithmetic, and what is refused.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from compare import BF16_RMS

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tqdm")

sys.path.insert(0, str(Path(__file__).parents[3] / "examples/gpt2"))

import divergence  # noqa: E402
import finetune  # noqa: E402
import model as models  # noqa: E402
import sizes  # noqa: E402
import training  # noqa: E402
from text import ByteTokenizer, Windows, made_up  # noqa: E402

import npu.torch  # noqa: E402


def small_run(seed: int = 0) -> training.Run:
    windows = Windows(ByteTokenizer().encode(made_up(seed)), 4, 64, seed)
    run = training.Run(models.build(None, "small", seed), windows, 2e-3, {})
    npu.torch.offload(run.model, device="emu:npu1")
    return run


@pytest.mark.slow
def test_a_small_model_learns_its_sentences(capsys) -> None:
    """By chance a byte has 5.5 nats; what cannot be known of a sentence (its word, one of 7 or 12
    names, before or after: 3.5 nats of 24 bytes on average) leaves 0.15. At 0.3 the model knows
    the form of the sentences and most names, but answers only one question in seven: which name it
    gives depends on the order in which torch adds on a CPU."""
    finetune.main(["--device", "emu:npu1", "--steps", "300", "--every", "300"])
    output = capsys.readouterr().out
    assert "9 layers" in output
    assert re.search(r"before: \nafter monday comes(?! [a-z]+\.)", output)
    assert re.search(r"after: \nafter monday comes [a-z]{3,9}\.", output)
    loss = float(output.split("step 300: validation loss ")[1].split()[0])
    assert 0.14 < loss < 0.4
    assert "0 of them after the first step" in output


def test_one_configuration_serves_all_products_of_a_step() -> None:
    run = small_run()
    run.one_step()
    before = npu.stats()
    run.one_step()
    after = npu.stats() - before
    layers = 2 * 4 + 1  # of each a forward product, and both gradients together
    assert (after.configuration_loads, after.submissions) == (0, 2 * layers)
    assert (after.streams_built, after.stream_hits) == (0, 2 * layers)


def test_products_differ_from_float64_by_the_rounding_of_their_operands() -> None:
    """Two factors are rounded to bfloat16: sqrt(2) times its RMS error, for numbers without a
    common sign; sums of magnitudes lose less."""
    run = small_run()
    with divergence.recorded() as found:
        run.gradients()
    assert len(found) == 27
    norms = np.array([one.norm for one in found])
    assert 0.1 * BF16_RMS < norms.mean() < 1.5 * 2**0.5 * BF16_RMS
    assert np.mean([one.total for one in found]) < norms.mean()
    assert "largest" in divergence.table(found)


def test_the_sizes_are_the_papers() -> None:
    """Twelve; 12 layers of 124M and the head in 190 of its 197 GFLOP."""
    of = list(sizes.products())
    assert len({one.size for one in of}) == 12
    assert sizes.flops(of) == 6 * 256 * (
        12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072) + 768 * 50304
    )
    assert {(256, 50304, 768), (50304, 256, 768), (256, 768, 2304)} <= {one.size for one in of}


def test_a_resumed_run_goes_on_as_without_a_break(tmp_path, capsys) -> None:
    out = str(tmp_path / "run")
    common = ["--every", "2", "--device", "emu:npu1"]
    runs = []
    keep = training.Run.train

    def train(self, *arguments):
        runs.append(self)
        keep(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.Run, "train", train)
        finetune.main(["--steps", "4", *common])
        finetune.main(["--steps", "2", *common, "--out", out])
        finetune.main(["--steps", "4", *common, "--out", out, "--resume"])
    whole, _, resumed = runs
    assert resumed.losses == whole.losses
    assert "continues" in capsys.readouterr().out


def words_of(folder: Path) -> None:
    """A tokenizer of whole words into a checkpoint folder."""
    tokenizers = pytest.importorskip("tokenizers")
    names = {word: i for i, word in enumerate(sorted(set(made_up(0).split())))}
    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="after"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="after").save_pretrained(folder)


def test_a_run_keeps_its_tokenizer_and_its_dropout(tmp_path, monkeypatch) -> None:
    """A checkpoint with both, resumed from the run's folder alone, as without a break; a long
    prompt loses its beginning."""
    model = models.build(None, "small", 0)
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        setattr(model.config, name, 0.2)
    model.save_pretrained(tmp_path / "before")
    words_of(tmp_path / "before")
    runs = []
    keep = training.Run.train
    monkeypatch.setattr(
        training.Run, "train", lambda self, *rest: (runs.append(self), keep(self, *rest))
    )
    start = ["--checkpoint", str(tmp_path / "before")]
    out, long = ["--out", str(tmp_path / "new/run")], ["--prompt", "after monday " * 200]
    common = ["--every", "2", "--device", "emu:npu1"]
    finetune.main([*start, *common, "--steps", "4"])
    finetune.main([*start, *common, "--steps", "2", *out])
    finetune.main([*common, "--steps", "4", *out, "--resume", *long])
    whole, _, resumed = runs
    assert resumed.losses == whole.losses and resumed.evaluated == whole.evaluated
    with pytest.raises(SystemExit, match="is at step 4; give more"):
        finetune.main([*common, "--steps", "4", *out, "--resume"])
    (tmp_path / "text").write_text(made_up(1))
    with pytest.raises(SystemExit, match="the run had text"):
        finetune.main([*common, *out, "--resume", "--text", str(tmp_path / "text")])


def test_a_save_cut_short_is_put_back(tmp_path) -> None:
    """Between the two renamings."""
    old = tmp_path / ".run.old"
    old.mkdir()
    (old / finetune.checkpoints.STATE).touch()
    assert finetune.checkpoints.claim(tmp_path / "run") == tmp_path / "run"
    assert (tmp_path / "run" / finetune.checkpoints.STATE).exists() and not old.exists()


def test_ctrl_c_keeps_the_last_checkpoint(tmp_path, capsys, monkeypatch) -> None:
    out = tmp_path / "run"
    step = training.Run.one_step

    def interrupted(self):
        if self.step == 3:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(training.Run, "one_step", interrupted)
    with pytest.raises(SystemExit) as stopped:
        finetune.main(["--steps", "9", "--every", "2", "--device", "emu:npu1", "--out", str(out)])
    assert stopped.value.code == 130
    assert "stopped at step 3; continue with --resume --out" in capsys.readouterr().out
    assert finetune.checkpoints.load(out)["step"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume"], "--resume needs --out"),
        (["--resume", "--out", "nothing"], "no checkpoint folder"),
        (["--text", "absent.txt"], "No such file"),
        (["--text", "empty.txt"], "has no text"),
        (["--text", "bytes.txt"], "is no UTF-8 text"),
        (["--text", "short.txt"], "windows of 64 need at least 660"),
        (["--length", "1000"], "the model has 256 positions"),
        (["--length", "1"], "none to foretell"),
        (["--checkpoint", "broken"], "broken does not load"),
        (["--checkpoint", "wordless"], "tokenizer in wordless does not load"),
        (["--out", "other"], "has other files than a run's"),
        (["--out", "short.txt"], "short.txt: Not a directory"),
        (["--out", "short.txt/run"], "Not a directory|File exists"),
        (["--plot", "nothing/loss.png"], "No such file"),
        (["--plot", "loss.words"], "its ending is none of"),
        (["--checkpoint", "other"], "type 'llama'; expected gpt2"),
        (["--checkpoint", "."], "is no checkpoint folder"),
    ],
)
def test_what_is_refused(words, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "short.txt").write_text("short")
    if "--plot" in words:
        pytest.importorskip("matplotlib")
    for name, file in (("broken", "model.safetensors"), ("wordless", "tokenizer.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "gpt2"}')
        (tmp_path / name / file).write_text("nothing")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(SystemExit, match=message) as stopped:
        finetune.main([*words, "--steps", "1"])
    assert str(stopped.value).startswith("[gpt2] ")
    assert (tmp_path / "other/config.json").exists() and (tmp_path / "short.txt").is_file()


@pytest.mark.parametrize(
    "words", [["--rate", "0"], ["--rate", "nan"], ["--seed", "-1"], ["--steps", "0"]]
)
def test_numbers_out_of_range_are_refused(words, capsys) -> None:
    with pytest.raises(SystemExit):
        finetune.main(words)
    assert f"argument {words[0]}: {words[1]} is" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 nonsense"])
def test_a_damaged_state_is_refused(damage, tmp_path) -> None:
    (tmp_path / finetune.checkpoints.STATE).write_bytes(damage)
    with pytest.raises(SystemExit, match="is damaged"):
        finetune.checkpoints.load(tmp_path)
