# SPDX-License-Identifier: Apache-2.0
"""The check of the compiled kernels finds what it is there to find: kernels with
a fault each, compiled here.

    check_kernels_test.py NVCC
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_kernels  # noqa: E402

SOURCE = """
template <typename Body>
__device__ void for_packs(float* out, const float* in, int n, Body body) {
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
    const float4 from = reinterpret_cast<const float4*>(in)[i];
    float4 to = body(i, from);
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
        __cvta_generic_to_global(reinterpret_cast<float4*>(out) + i)),
        "f"(to.x), "f"(to.y), "f"(to.z), "f"(to.w) : "memory");
  }
  for (int i = n / 4 * 4 + threadIdx.x; i < n; i += blockDim.x) {
    out[i] = in[i];
  }
}

__global__ void __launch_bounds__(256)
good_kernel(float* out, const float* in, int n) {
  for_packs(out, in, n, [](int, float4 x) { return x; });
}

__global__ void __launch_bounds__(256)
local_array_kernel(float* out, const float* in, int n) {
  for_packs(out, in, n, [n](int i, float4 x) {
    float values[64] = {x.x, x.y, x.z, x.w};
    for (int k = 0; k < n; ++k) {
      values[(k * i) & 63] += values[(k ^ i) & 63];
    }
    return make_float4(values[i & 63], x.y, x.z, x.w);
  });
}

__global__ void __launch_bounds__(256)
narrow_load_kernel(float* out, const float* in, int n, const short* more) {
  for_packs(out, in, n, [more](int i, float4 x) {
    x.x += more[i];
    return x;
  });
}

__global__ void __launch_bounds__(256)
split_store_kernel(float* out, const float* in, int n) {
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
    const float4 x = reinterpret_cast<const float4*>(in)[i];
    volatile float* to = out + 4 * i;
    to[0] = x.x;
    to[1] = x.y;
    to[2] = x.z;
    to[3] = x.w;
  }
}

__global__ void __launch_bounds__(256)
many_registers_kernel(float* out, const float* in, int n) {
  float values[80];
  #pragma unroll
  for (int k = 0; k < 80; ++k) {
    values[k] = in[k * n];
  }
  __syncthreads();
  #pragma unroll
  for (int k = 0; k < 80; ++k) {
    out[k * n] = values[k] * values[79 - k];
  }
  for_packs(out, in, n, [](int, float4 x) { return x; });
}

__global__ void __launch_bounds__(256)
large_shared_kernel(float* out, const float* in, int n) {
  __shared__ float values[2048];
  for_packs(out, in, n, [&](int i, float4 x) {
    values[i & 2047] = x.x;
    x.y = values[i & 1023];
    return x;
  });
}

// With 64 registers for a thread: the others are spilled.
__global__ void __launch_bounds__(1024)
spilled_kernel(float* out, const float* in, int n) {
  float values[100];
  #pragma unroll
  for (int k = 0; k < 100; ++k) {
    values[k] = in[k * n];
  }
  __syncthreads();
  #pragma unroll
  for (int k = 0; k < 100; ++k) {
    out[k * n] = values[k] - 2 * values[99 - k];
  }
  for_packs(out, in, n, [](int, float4 x) { return x; });
}
"""


def design(name, **changes):
    wanted = dict(
        threads=256,
        blocks={75: 4, 90: 8},
        reason="of this test",
        packed=16,
        loads=1,
        stores=1,
        narrowest=16,
    )
    wanted.update(changes)
    return check_kernels.Design(name, **wanted)


class CheckKernels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "kernels.cu")
            source.write_text(SOURCE)
            binary = pathlib.Path(folder, "kernels.fatbin")
            subprocess.run(
                [
                    nvcc,
                    "-std=c++17",
                    "-fatbin",
                    "-gencode=arch=compute_75,code=sm_75",
                    "-gencode=arch=compute_90,code=sm_90",
                    "-o",
                    binary,
                    source,
                ],
                check=True,
            )
            cls.kernels = check_kernels.read_kernels(binary)

    def wrong(self, name, **changes):
        """What is said about the kernels with this name, in one text."""
        kernels = [k for k in self.kernels if k.name == name]
        self.assertEqual([k.architecture for k in kernels], [75, 90])
        _, wrong = check_kernels.check(kernels, [design(name, **changes)])
        return "\n".join(wrong)

    def test_a_kernel_as_designed_passes(self):
        self.assertEqual(self.wrong("good_kernel"), "")

    def test_a_local_array_is_found(self):
        wrong = self.wrong("local_array_kernel")
        self.assertIn("stack frame", wrong)
        self.assertIn("accesses to local memory, such as", wrong)

    def test_spilled_registers_are_found(self):
        self.assertIn("accesses to local memory", self.wrong("spilled_kernel"))

    def test_a_narrow_load_in_a_loop_over_packs_is_found(self):
        wrong = self.wrong("narrow_load_kernel")
        self.assertRegex(wrong, r"sm_75: a loop over packs of 16 bytes moves 2: 'LDG")
        self.assertRegex(wrong, r"sm_90: a loop over packs of 16 bytes moves 2: 'LDG")

    def test_a_split_store_is_found(self):
        wrong = self.wrong("split_store_kernel")
        self.assertIn("0 STG of 16 bytes or more in loops, not 1", wrong)
        self.assertIn("moves 4: 'STG", wrong)

    def test_too_many_registers_are_found(self):
        wrong = self.wrong("many_registers_kernel")
        self.assertRegex(wrong, r"blocks of 256 threads fit, not 8 .of this test")
        self.assertIn("at most 32 registers do", wrong)

    def test_too_much_shared_memory_is_found(self):
        wrong = self.wrong("large_shared_kernel", shared_bytes=4096)
        self.assertIn("9216 bytes of shared memory, more than 4096", wrong)
        self.assertNotIn(
            "more than", self.wrong("large_shared_kernel", shared_bytes=8192)
        )

    def test_kernels_and_rows_belong_together(self):
        one = [k for k in self.kernels if k.name == "good_kernel"]
        _, wrong = check_kernels.check(one, [design("other_kernel")])
        self.assertIn("0 rows of DESIGN name it", wrong[0])
        self.assertIn("no kernel is named as DESIGN's other_kernel", wrong[-1])

    def test_occupancy_is_that_of_nvidias_calculator(self):
        blocks = check_kernels.blocks_per_processor
        h100 = check_kernels.PROCESSORS[90]
        turing = check_kernels.PROCESSORS[75]
        self.assertEqual(blocks(h100, 256, 32, 0), 8)
        self.assertEqual(blocks(h100, 256, 33, 0), 6)  # 40 are allocated
        self.assertEqual(blocks(h100, 256, 64, 0), 4)
        self.assertEqual(blocks(h100, 256, 255, 0), 1)
        self.assertEqual(blocks(h100, 32, 16, 0), 32)
        self.assertEqual(blocks(h100, 256, 32, 100 << 10), 2)
        self.assertEqual(blocks(turing, 256, 64, 0), 4)
        self.assertEqual(blocks(turing, 256, 65, 0), 3)
        self.assertEqual(check_kernels.most_registers(h100, 256, 5), 48)


if __name__ == "__main__":
    nvcc = sys.argv.pop(1)
    unittest.main()
