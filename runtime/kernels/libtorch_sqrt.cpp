// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/libtorch_sqrt.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sqrt.h>
#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace tessera {

namespace {

// MKL's entry points: element count, input, output, mode.
template <typename T>
using VmlSqrt = void (*)(int, const T*, T*, long long);

// VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE, the mode that ATen requests.
constexpr long long kVmlMode = 0x2 | 0x140000 | 0x100;

/// Sets the number of MKL's threads for calls from this thread and returns the
/// previous one; 0 stands for MKL's global number.
using SetMklThreads = int (*)(int);

/// LibTorch links MKL statically and exports its functions. A build without
/// MKL has no such symbols.
template <typename Function>
Function find_symbol(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
}

template <typename T>
VmlSqrt<T> find_vml_sqrt() {
  return find_symbol<VmlSqrt<T>>(
      std::is_same_v<T, float> ? "vmsSqrt" : "vmdSqrt");
}

SetMklThreads find_set_mkl_threads() {
  return find_symbol<SetMklThreads>("MKL_Set_Num_Threads_Local");
}

template <typename T>
void compute_with_vml(int64_t numel, const T* in, T* out) {
  static const VmlSqrt<T> vml_sqrt = find_vml_sqrt<T>();
  static const SetMklThreads set_mkl_threads = find_set_mkl_threads();
  // By default, MKL starts its threads even for a hundred elements.
  const int threads = set_mkl_threads(1);
  vml_sqrt(static_cast<int>(numel), in, out, kVmlMode);
  set_mkl_threads(threads);
}

template <typename T>
void compute_with_aten(int64_t numel, const T* in, T* out) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  auto dtype = c10::CppTypeToScalarType<T>::value;
  at::Tensor to = at::from_blob(out, {numel}, dtype);
  at::sqrt_out(to, at::from_blob(const_cast<T*>(in), {numel}, dtype));
}

template <typename T>
void compute_correctly(int64_t numel, const T* in, T* out) {
  for (int64_t i = 0; i < numel; ++i) {
    out[i] = std::sqrt(in[i]);
  }
}

/// Inputs for comparing two square roots. A root depends on the significand and
/// the parity of the exponent: for float32 these are all 2^24 of them, for
/// float64 a sample of the same size.
template <typename T>
class Probe {
 public:
  static constexpr int kChunks = 256;
  static constexpr int64_t kChunkNumel = 1 << 16;

  static std::vector<T> chunk(int index) {
    using Bits =
        std::conditional_t<std::is_same_v<T, float>, uint32_t, uint64_t>;
    // Bits besides 24 of significand and exponent, which a hash fills.
    constexpr int kLowBits = std::numeric_limits<T>::digits - 24;
    const T one = 1;
    Bits bits;
    std::memcpy(&bits, &one, sizeof(bits));
    std::vector<T> values(kChunkNumel);
    for (int64_t i = 0; i < kChunkNumel; ++i) {
      // Every chunk is spread over both binades, so that a difference is found
      // in the first one.
      Bits value = bits + (static_cast<Bits>(i * kChunks + index) << kLowBits);
      if constexpr (kLowBits > 0) {
        value += (i * 0x9e3779b97f4a7c15u) >> (64 - kLowBits);
      }
      std::memcpy(&values[i], &value, sizeof(value));
    }
    if (index == 0) {
      values[0] = 0;
      values[1] = std::numeric_limits<T>::infinity();
      values[2] = std::numeric_limits<T>::denorm_min();
      values[3] = std::numeric_limits<T>::max();
    }
    return values;
  }
};

template <typename T, typename Sqrt>
bool equals_aten(Sqrt compute, int chunks) {
  std::vector<T> expected(Probe<T>::kChunkNumel);
  std::vector<T> found(Probe<T>::kChunkNumel);
  for (int i = 0; i < chunks; ++i) {
    std::vector<T> in = Probe<T>::chunk(i);
    compute_with_aten<T>(Probe<T>::kChunkNumel, in.data(), expected.data());
    compute(Probe<T>::kChunkNumel, in.data(), found.data());
    if (expected != found) {
      return false;
    }
  }
  return true;
}

template <typename T>
LibTorchSqrt<T> choose() {
  if (equals_aten<T>(&compute_correctly<T>, Probe<T>::kChunks)) {
    return {};
  }
  if (find_vml_sqrt<T>() != nullptr && find_set_mkl_threads() != nullptr &&
      equals_aten<T>(&compute_with_vml<T>, 1)) {
    // Small, so that loads which the first half of the update of a chunk has
    // prefetched arrive while the roots of that chunk are computed.
    return {&compute_with_vml<T>, 256};
  }
  return detail::aten_sqrt<T>();
}

} // namespace

template <typename T>
const LibTorchSqrt<T>& libtorch_sqrt() {
  static const LibTorchSqrt<T> chosen = choose<T>();
  return chosen;
}

template const LibTorchSqrt<float>& libtorch_sqrt<float>();
template const LibTorchSqrt<double>& libtorch_sqrt<double>();

namespace detail {

template <typename T>
LibTorchSqrt<T> aten_sqrt() {
  // A call takes half a microsecond, which is much per element, but the arrays
  // of a chunk must stay in the second-level cache.
  return {&compute_with_aten<T>, 4096};
}

template LibTorchSqrt<float> aten_sqrt<float>();
template LibTorchSqrt<double> aten_sqrt<double>();

} // namespace detail

} // namespace tessera
