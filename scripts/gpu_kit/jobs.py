# SPDX-License-Identifier: Apache-2.0
"""What runs on the machine with the GPU, as data: phases of jobs, the most
valuable first."""
import dataclasses
import json
import math
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
CAP_GIB = 11  # the consumer card that BERT-Large has to fit
PATIENCE = 3  # a job may take that many times its estimate
# Seconds that it may take in any case: the first to load LibTorch's CUDA
# libraries reads 3 GB from the disk.
LEAST_LIMIT = 90
DEVICE_CHECK = """
nvidia-smi -L 2>&1 | grep '^GPU' || {
  nvidia-smi -L 2>&1
  echo 'Error: nvidia-smi finds no device; the other phases need one.'
  exit 1
}"""
TORCH_CHECK = """
import sys, torch
if not torch.cuda.is_available():
    sys.exit('Error: torch finds no device that the driver lets it use.')
"""


@dataclasses.dataclass
class Job:
    """A program with what it is called with: words(), in a folder."""
    name: str
    program: str  # of bin/, or "sh", "python", "compare_cuda"
    arguments: list = dataclasses.field(default_factory=list)
    keys: dict = dataclasses.field(default_factory=dict)  # key=value, --key value
    engine: dict = dataclasses.field(default_factory=dict)  # keys of the engine
    environment: dict = dataclasses.field(default_factory=dict)
    estimate: float = 10  # seconds, on an H100 with 16 cores
    limit: float = 0  # seconds after which it is stopped; 0: from the estimate
    is_information: bool = False  # its failure is not one of Tessera's
    needs: list = dataclasses.field(default_factory=list)  # files it reads
    module: str = ""  # of Python, without which the job is skipped
    is_capped: bool = False  # to CAP_GIB of the device
    device_gib: float = 0  # memory that the device has to have
    host_gib: float = 0  # memory of the host that has to be free
    wrapper: list = dataclasses.field(default_factory=list)  # words before it

    def seconds(self):
        """After how long it is stopped."""
        return self.limit or max(PATIENCE * self.estimate, LEAST_LIMIT)

    def words(self, folder):
        """The command line."""
        engine = [f"{key}={value}" for key, value in self.engine.items()]
        if self.program == "compare_cuda":
            words = [sys.executable, str(folder / "peers/compare_cuda.py"),
                     *self.arguments, "--program", str(folder / "bin/train_gpt2")]
            for key, value in self.keys.items():
                words += [f"--{key}", str(value)]
            if engine:
                words += ["--engine", " ".join(engine)]
        else:
            first = {"sh": "sh", "python": sys.executable}.get(
                self.program, str(folder / "bin" / self.program))
            words = [first, *self.arguments,
                     *(f"{key}={value}" for key, value in self.keys.items()), *engine]
        return [*self.wrapper, *words]


@dataclasses.dataclass
class Phase:
    name: str
    jobs: list
    workers: int = 1  # programs at a time; 1 where their times are the result
    is_gate: bool = False  # nothing is worth running after its failure


SIZE_124M = {"layers": 12, "width": 768, "heads": 12, "batch": 2, "sequence": 256}
SIZE_1B = {"layers": 24, "width": 2048, "heads": 16, "batch": 8, "sequence": 1024}
SIZE_3B = {"layers": 32, "width": 2560, "heads": 32, "batch": 4, "sequence": 1024}
SIZE_7B = {"layers": 32, "width": 4096, "heads": 32, "batch": 4, "sequence": 1024}
SIZE_13B = {"layers": 40, "width": 5120, "heads": 40, "batch": 1, "sequence": 2048}
# Llama 3 8B, the sizes of which train_gpt2 knows.
SIZE_8B = {"model": "llama", "batch": 1, "sequence": 4096}
HOST = {"placement.optimizer": "host"}


class Kit:
    """The jobs, for the folder that was packed."""

    def __init__(self, folder, logs):
        self.folder = folder
        self.work = logs / "work"

    def tests(self, file, estimate, repeat=1, name=None, needs=(), **environment):
        """The tests of a file."""
        arguments = [f"--file={file}"]
        if repeat > 1:
            arguments.append(f"--gtest_repeat={repeat}")
        return Job(name or pathlib.Path(file).stem, f"{file.split('/')[0]}_tests",
                   arguments,
                   environment={"TESSERA_TEST_DEVICE": "cuda", **environment},
                   estimate=estimate,
                   needs=[self.cuda_library(), self.shared_device(), *needs])

    def shards(self, file, chosen, count, estimate, needs=()):
        """The `chosen` ones of `count` parts of a file's tests."""
        return [
            self.tests(file, estimate, name=f"{pathlib.Path(file).stem}_{i}",
                       needs=needs, GTEST_TOTAL_SHARDS=str(count),
                       GTEST_SHARD_INDEX=str(i))
            for i in chosen]

    def cuda_library(self):
        """What programs load by themselves, so that ldd does not show it."""
        return self.folder / "lib/libtessera_cuda.so"

    def shared_device(self):
        """The plug-in by which ranks share the device, likewise."""
        return self.folder / "lib/libtessera_shared_device.so"

    def smoke_models(self):
        """The files of the models that the zoo's smoke test trains."""
        models = self.folder / "tests/zoo/fixtures/models"
        listed = models / "packed.txt"
        names = listed.read_text().split() if listed.exists() else []
        return [listed, *(models / name / file for name in names for file in (
            "config.json", "model.safetensors", "expected.safetensors"))]

    def gpt2(self, name, size, estimate, keys=None, engine=None, **options):
        """Training steps of Tessera in bfloat16."""
        return Job(name, "train_gpt2", keys={
            "device": "cuda", "dtype": "bfloat16", "threads": 16, "lazy": 1,
            "predict": "auto", **size, **(keys or {})}, engine=engine or {}, estimate=estimate,
            needs=[self.cuda_library()], **options)

    def compare(self, name, contender, size, estimate, engine=None, steps=8,
                warmup=3, **options):
        """Training steps of GPT-2 by Tessera or a peer, and their MFU; Tessera's
        beside what the machine's device would take at least."""
        predicted = {"predict": "auto"} if contender == "tessera" else {}
        return Job(name, "compare_cuda", [contender], {
            "rounds": 1, **predicted, **size, "steps": steps, "warmup": warmup},
            engine or {}, {
                "PYTHONPATH": str(self.folder / "site"),
                **options.pop("environment", {})},
            estimate, needs=[self.folder / "peers/gpt2_cuda.py", self.cuda_library()],
            **options)

    def peer(self, name, contender, size, estimate, **options):
        """A peer, whose failure is not Tessera's."""
        if contender.startswith("deepspeed"):
            options["module"] = "deepspeed"
        return self.compare(name, contender, size, estimate, is_information=True,
                            **options)

    def phases(self):
        """All of them, in the order of their value."""
        return [*self.gates(), *self.speed(), *self.suites(), *self.offload(),
                *self.rest()]

    def gates(self):
        return [
            Phase("environment", [
                Job("device", "sh", ["-c", DEVICE_CHECK], estimate=3),
                Job("device_of_torch", "python", ["-c", TORCH_CHECK], estimate=12),
                Job("libraries", "sh", ["-c", f"ldd {self.folder}/bin/* {self.folder}/lib/*.so | "
                                        "grep 'not found' | sort -u | grep . && exit 1 || true"],
                    estimate=5),
                Job("machine", "sh", ["-c", "nvidia-smi; free -g; ulimit -a; df -h /tmp; nproc; uname -a"],
                    estimate=5, is_information=True)], workers=4, is_gate=True),
            Phase("gate_kernels", [
                self.tests("runtime/kernels/update_gpu_test.cpp", 20),
                self.tests("runtime/kernels/pack_gpu_test.cpp", 15),
                self.tests("runtime/kernels/mixed_norm_gpu_test.cpp", 15),
                self.tests("runtime/kernels/fast_operators_gpu_test.cpp", 20),
                self.tests("runtime/kernels/softmax_loss_gpu_test.cpp", 20),
                self.tests("runtime/random/counter_random_gpu_test.cpp", 15),
                self.tests("offload/stores/shard_store_gpu_test.cpp", 20)],
                workers=6, is_gate=True),
            Phase("gate_losses", [
                Job("124m_losses", "python",
                    [str(HERE / "loss_gate.py"),
                     "--program", str(self.folder / "bin/train_gpt2")],
                    {"device": "cuda", **SIZE_124M, "steps": 18, "warmup": 2},
                    estimate=25, needs=[self.cuda_library()])], is_gate=True)]

    def speed(self):
        """1.3B with the state on the device, and an 8B model where it fits."""
        return [
            Phase("speed", [
                self.compare("1b_tessera", "tessera", SIZE_1B, 12),
                self.compare("1b_fused_off", "tessera", SIZE_1B, 12, engine={"fused": 0}),
                self.compare("1b_helpers", "tessera", SIZE_1B, 12,
                             engine={"helpers": 1}),
                self.compare("1b_updates_beside_forward", "tessera", SIZE_1B, 12,
                             engine={"optimizer.overlap": "wait"}),
                self.peer("1b_plain", "plain", SIZE_1B, 12),
                self.peer("1b_single", "single", SIZE_1B, 15),
                self.peer("1b_fsdp2", "fsdp2", SIZE_1B, 16),
                self.gpt2("1b_profile", SIZE_1B, 15, {
                    "steps": 2, "warmup": 3, "profile": self.work / "trace.json"})]),
            # They compile for most of their time.
            Phase("speed_compiled", [
                self.peer("1b_fsdp2_compile", "fsdp2-compile", SIZE_1B, 45),
                self.peer("1b_single_compile", "single-compile", SIZE_1B, 60)]),
            # 96 GB of weights, gradients and optimizer state.
            Phase("speed_8b", [
                self.gpt2(name, {**SIZE_8B, **size}, 50, {
                    "steps": 6, "warmup": 3, **keys}, {
                    "optimizer.moment_dtype": "bfloat16",
                    "precision.gradients": "bfloat16"}, device_gib=120)
                for name, size, keys in [
                    ("8b_tessera", {}, {}),
                    ("8b_2_rows", {"batch": 2}, {}),
                    ("8b_profile", {}, {
                        "steps": 2, "profile": self.work / "trace_8b.json"})]])]

    def suites(self):
        communicator = "runtime/comm/communicator_gpu_test.cpp"
        training = "engine/cuda_training_gpu_test.cpp"
        pipeline = "pipeline/pipeline_gpu_test.cpp"
        matrix = "engine/matrix_test.cpp"
        return [
            Phase("engine", [
                *self.shards("engine/optim/placement_gpu_test.cpp", range(3), 3, 40),
                self.tests(training, 40),
                self.tests("engine/activation_offload_gpu_test.cpp", 40),
                self.tests("engine/trainer/trainer_gpu_test.cpp", 40),
                self.tests("engine/spent_gradients_gpu_test.cpp", 30),
                self.tests("sharding/lazy/move_module_gpu_test.cpp", 30),
                self.tests(pipeline, 40)], workers=8),
            Phase("zoo", [
                *self.shards("zoo/smoke_gpu_test.cpp", range(6), 6, 50,
                             self.smoke_models()),
                *(self.tests(f"zoo/{name}_gpu_test.cpp", 25)
                  for name in ("generation", "masks", "images", "planned_memory"))],
                workers=8),
            Phase("nccl", [
                self.tests(file, 35, TESSERA_FORCE_NCCL="1")
                for file in (training, communicator, pipeline)], workers=3),
            Phase("matrix", [
                self.tests(communicator, 40),
                *self.shards(matrix, range(3), 7, 70)], workers=4),
            # Of 2 or 4 ranks that share the device.
            Phase("layouts", self.shards("zoo/layouts_gpu_test.cpp", range(4), 4, 60),
                  workers=4),
            Phase("matrix_rest", self.shards(matrix, range(3, 7), 7, 70), workers=4)]

    def offload(self):
        """1.3B and BERT-Large with state on the host."""
        return [
            Phase("offload", [
                self.compare(f"1b_host_{name}", "tessera", SIZE_1B, 20,
                             engine={**HOST, **engine}, steps=4, warmup=2)
                for name, engine in [
                    ("auto", {}),
                    ("ratio_1", {"offload.ratio": 1}),
                    ("ratio_0", {"offload.ratio": 0}),
                    ("gradients", {"placement.gradients": "host"}),
                    ("gradients_low", {"precision.gradients": "bfloat16"})]] + [
                self.gpt2("1b_host_profile", SIZE_1B, 20, {
                    "steps": 2, "warmup": 2,
                    "profile": self.work / "trace_host.json"}, HOST)]),
            Phase("bert_large", [self.bert_large()])]

    def rest(self):
        """What a quarter of an hour seldom has time for."""
        connections = "CUDA_DEVICE_MAX_CONNECTIONS"
        training = "engine/cuda_training_gpu_test.cpp"
        nvme = {"placement.optimizer": "nvme", "memory.nvme_path": self.work / "nvme"}
        return [
            Phase("levers", [
                self.compare(f"1b_{name}", "tessera", SIZE_1B, 15, engine=engine,
                             environment=environment)
                for name, engine, environment in [
                    ("cudnn_off", {}, {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}),
                    ("gradients_low", {"precision.gradients": "bfloat16"}, {}),
                    ("update_in_backward", {"update_in_backward": 1, "clip": 0}, {}),
                    ("norms_low", {"precision.norms_in_float32": "false"}, {}),
                    ("expandable", {}, {
                        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})]] + [
                self.compare("1b_vocabulary", "tessera",
                             {**SIZE_1B, "vocabulary": 50304}, 15),
                self.compare("124m_tessera", "tessera", SIZE_124M, 12, steps=50),
                self.peer("124m_plain", "plain", SIZE_124M, 12, steps=50),
                self.peer("1b_deepspeed", "deepspeed", SIZE_1B, 45)]),
            # 13B under budgets: float32 master weights and bfloat16 moments,
            # 104 GB, rest on the host but for what the device has room for. No
            # peer fits a host of 128 GiB.
            Phase("gpt_13b", [
                self.compare(f"13b_{gib}_gib", "tessera", SIZE_13B, 60, engine={
                    "optimizer.moment_dtype": "bfloat16",
                    "precision.gradients": "bfloat16",
                    "memory.device_bytes": f"{gib}GiB",
                    "memory.activation_bytes": "20GiB",
                    "memory.host_bytes": "104GiB"},
                    steps=3, warmup=2, host_gib=112, device_gib=gib)
                for gib in (130, 76)]),
            Phase("offload_7b", [
                self.compare("7b_tessera", "tessera", SIZE_7B, 55, engine=HOST,
                             steps=2, warmup=1, host_gib=90),
                self.peer("7b_deepspeed_offload", "deepspeed-offload", SIZE_7B, 80,
                          steps=2, warmup=1, host_gib=90),
                *[self.compare(f"7b_ratio_{ratio}", "tessera", SIZE_7B, 55,
                               engine={**HOST, "offload.ratio": ratio},
                               steps=2, warmup=1, host_gib=90)
                  for ratio in (0, 1)]]),
            Phase("offload_rest", [
                self.compare(f"1b_{name}", "tessera", SIZE_1B, estimate,
                             engine=engine, steps=steps, warmup=1)
                for name, engine, steps, estimate in [
                    ("parameters_host", {**HOST, "placement.parameters": "host"}, 4, 25),
                    ("nvme", nvme, 2, 90)]] + [
                self.peer("1b_deepspeed_offload", "deepspeed-offload", SIZE_1B, 90,
                          steps=4, warmup=2)]),
            # A process counts its devices once, and each rank loads LibTorch's
            # CUDA libraries: about 3 s a test.
            Phase("streams", [
                self.tests(training, 40, name="launch_blocking",
                           CUDA_LAUNCH_BLOCKING="1"),
                self.tests("engine/activation_offload_gpu_test.cpp", 110, repeat=5,
                           name="activations_again"),
                *[self.tests(training, 110, repeat=5, name=f"connections_{count}",
                             **{connections: str(count)})
                  for count in (32, 8, 1)]], workers=3),
            # The most memory of the host: 4 x 11 GB in pinned blocks of powers
            # of two.
            Phase("offload_3b", [
                self.compare("3b_tessera", "tessera", SIZE_3B, 40, engine=HOST,
                             steps=3, warmup=2, host_gib=60),
                self.peer("3b_fsdp2_offload", "fsdp2-offload", SIZE_3B, 150,
                          steps=3, warmup=2, host_gib=100)])]

    def bert_large(self):
        """BERT-Large from new weights, under a limit that the allocator holds."""
        folder = self.work / "bert_large"
        return Job("bert_large", "tessera-run", ["train", str(folder / "config.json")],
                   estimate=40,
                   needs=[self.cuda_library(), *(folder / name for name in (
                       "config.json", "model.json", "train.safetensors"))],
                   is_capped=True)

    def prepare(self):
        """The files that jobs read."""
        (self.work / "nvme").mkdir(parents=True, exist_ok=True)
        folder = self.work / "bert_large"
        folder.mkdir(exist_ok=True)
        rows, length = 96, 512
        write_safetensors(folder / "train.safetensors", {
            "input_ids": [rows, length,
                          [5 + (r * 31 + c * 7) % 30000 for r in range(rows) for c in range(length)]],
            "labels": [rows, [r % 2 for r in range(rows)]]})
        (folder / "model.json").write_text(json.dumps({
            "model_type": "bert", "architectures": ["BertForSequenceClassification"],
            "vocab_size": 30522, "hidden_size": 1024, "num_hidden_layers": 24,
            "num_attention_heads": 16, "intermediate_size": 4096,
            "max_position_embeddings": 512, "num_labels": 2}))
        (folder / "config.json").write_text(json.dumps({
            "task": "examples", "model": {"config": str(folder / "model.json")},
            "data": {"train": str(folder / "train.safetensors")},
            "optimizer": {"type": "adamw", "lr": 2e-5},
            "placement": {"optimizer": "host"},
            "training": {"epochs": 1, "batch_size": 8, "accumulate": 4, "clip_grad_norm": 1.0,
                         "log_every": 1},
            "device": "cuda",
            "precision": {"parameters": "float16"},
            "memory": {"device_bytes": CAP_GIB << 30},
            "output": {"folder": str(folder / "run"), "overwrite": True}}))


def write_safetensors(path, tensors):
    """{name: [sizes ..., numbers]} as int64."""
    header, data = {}, b""
    for name, (*sizes, numbers) in tensors.items():
        raw = struct.pack(f"<{len(numbers)}q", *numbers)
        header[name] = {"dtype": "I64", "shape": sizes,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def seconds_of(phase):
    """What a phase takes, by the estimates of its jobs."""
    longest = max(job.estimate for job in phase.jobs)
    return max(longest, math.fsum(job.estimate for job in phase.jobs) / phase.workers)
