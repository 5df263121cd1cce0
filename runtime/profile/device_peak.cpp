// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/profile/device_peak.h"

#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/runtime/streams/stream_time.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

namespace tessera::runtime {

namespace {

/// In 10^12 operations and bytes per second; 0: the device has no such units.
struct KnownPeak {
  std::string_view name; ///< part of the driver's name
  double half; ///< float16 and, but for `half_only`, bfloat16
  double tf32;
  double float32; ///< without tensor cores
  double memory; ///< of the smaller card, where a name has several
  bool half_only = false; ///< no bfloat16
};

/// From NVIDIA's data sheets and architecture white papers of these products:
/// dense rates, 16 bits with float32 accumulation. The first name that fits
/// counts.
constexpr std::array<KnownPeak, 30> kKnown{{
    {"B200", 2250, 1125, 75, 8},
    {"GH200", 989.4, 494.7, 66.9, 4},
    {"H200 NVL", 835.5, 417.5, 60, 4.8},
    {"H200", 989.4, 494.7, 66.9, 4.8},
    {"H100 PCIe", 756, 378, 51.2, 2},
    {"H100 NVL", 835.5, 417.5, 60, 3.9},
    {"H100", 989.4, 494.7, 66.9, 3.35},
    {"H800 PCIe", 756, 378, 51.2, 2},
    {"H800", 989.4, 494.7, 66.9, 3.35},
    {"H20", 148, 74, 44, 4},
    {"A100-SXM4-80GB", 312, 156, 19.5, 2.039},
    {"A100 80GB PCIe", 312, 156, 19.5, 1.935},
    {"A100", 312, 156, 19.5, 1.555},
    {"A800", 312, 156, 19.5, 1.555},
    {"A40", 149.7, 74.8, 37.4, 0.696},
    {"A30", 165, 82, 10.3, 0.933},
    {"A10G", 70, 35, 35, 0.6},
    {"A10", 125, 62.5, 31.2, 0.6},
    {"RTX A6000", 154.8, 77.4, 38.7, 0.768},
    {"L40S", 362, 183, 91.6, 0.864},
    {"L40", 181, 90.5, 90.5, 0.864},
    {"L4", 121, 60, 30.3, 0.3},
    {"RTX 5090", 209.5, 104.8, 104.8, 1.792},
    {"RTX 4090", 165.2, 82.6, 82.6, 1.008},
    {"RTX 3090 Ti", 80, 40, 40, 1.008},
    {"RTX 3090", 71, 35.6, 35.6, 0.936},
    {"V100-PCIE", 112, 0, 14, 0.9, true},
    {"V100", 125, 0, 15.7, 0.9, true},
    {"RTX 2080 Ti", 53.8, 0, 13.4, 0.616, true},
    {"T4", 65, 0, 8.1, 0.3, true},
}};

constexpr int64_t kMeasuredRows = 512;
constexpr double kMeasuredSeconds = 0.05;
constexpr int kMostProducts = 200;

double measured_peak_flops(c10::Device device, c10::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  // The libraries' scratch memory too: some convert 16-bit matrices.
  const UncountedCpuMemory uncounted;
  const int64_t rows = kMeasuredRows;
  const auto options = at::device(device).dtype(dtype);
  const at::Tensor a = at::ones({rows, rows}, options);
  at::Tensor product = at::empty({rows, rows}, options);
  const double flops = 2.0 * static_cast<double>(rows * rows * rows);
  at::mm_out(product, a, a); // the library's first call
  double best_s = 1e9;
  double all_s = 0;
  for (int i = 0; i < kMostProducts && all_s < kMeasuredSeconds; ++i) {
    const StreamTime begin = StreamTime::now(device);
    at::mm_out(product, a, a);
    const double seconds = StreamTime::now(device).seconds_since(begin);
    best_s = std::min(best_s, std::max(seconds, 1e-9));
    all_s += seconds;
  }
  return flops / best_s;
}

std::string name_of_device(c10::Device device) {
  const auto& names = load_cuda_backend().device_names;
  const auto index = static_cast<size_t>(std::max<int>(device.index(), 0));
  return device.is_cuda() && index < names.size() ? names[index] : "";
}

/// Whether `name` has `part` as words of its own.
bool names(std::string_view name, std::string_view part) {
  const auto is_part_of_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0;
  };
  const size_t begin = name.find(part);
  const size_t end = begin + part.size();
  return begin != name.npos &&
         (begin == 0 || !is_part_of_word(name[begin - 1])) &&
         (end == name.size() || !is_part_of_word(name[end]));
}

} // namespace

namespace {

/// Null if it is not known.
const KnownPeak* known_device(std::string_view name) {
  const auto* const found =
      std::find_if(kKnown.begin(), kKnown.end(), [&](const KnownPeak& known) {
        return names(name, known.name);
      });
  return found == kKnown.end() || names(name, "Laptop") ? nullptr : found;
}

} // namespace

std::optional<double> known_memory_rate(std::string_view name) {
  const KnownPeak* const found = known_device(name);
  return found == nullptr ? std::nullopt : std::optional(found->memory * 1e12);
}

std::optional<double> known_peak_flops(
    std::string_view name,
    c10::ScalarType dtype,
    bool uses_tf32) {
  const KnownPeak* const found = known_device(name);
  if (found == nullptr) {
    return std::nullopt;
  }
  double tera = 0;
  if (dtype == at::kHalf || (dtype == at::kBFloat16 && !found->half_only)) {
    tera = found->half;
  } else if (dtype == at::kFloat) {
    tera = uses_tf32 && found->tf32 > 0 ? found->tf32 : found->float32;
  }
  return tera > 0 ? std::optional(tera * 1e12) : std::nullopt;
}

DevicePeak device_peak(c10::Device device, c10::ScalarType dtype) {
  const std::string name = name_of_device(device);
  if (const auto known = known_peak_flops(
          name, dtype, at::globalContext().allowTF32CuBLAS())) {
    return {*known, false, name};
  }
  static std::mutex mutex;
  static std::map<std::pair<std::string, c10::ScalarType>, double> measured;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = measured.try_emplace({device.str(), dtype}, 0);
  if (is_new) {
    entry->second = measured_peak_flops(device, dtype);
  }
  return {entry->second, true, name.empty() ? device.str() : name};
}

} // namespace tessera::runtime
