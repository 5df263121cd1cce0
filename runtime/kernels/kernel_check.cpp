// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/kernel_check.h"

#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/kernels/kernel_problems.h"
#include "tessera/runtime/kernels/operator_tensors.h"

#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace tessera::runtime {

namespace {

enum class KernelState : uint8_t { kUnchecked, kServes, kReplaced };

constexpr size_t kMostDevices = std::numeric_limits<c10::DeviceIndex>::max();

std::array<std::array<std::atomic<KernelState>, kKernels>, kMostDevices>
    kernel_states{};
std::mutex checks;

bool is_check_wanted() {
  const char* wanted = std::getenv("TESSERA_CHECK_KERNELS");
  return wanted == nullptr || std::string(wanted) != "0";
}

/// The stream of checks on a device. Under `checks`.
const c10::Stream& check_stream(c10::Device device) {
  static auto* const streams = new std::map<c10::DeviceIndex, c10::Stream>();
  const auto found = streams->find(device.index());
  return found != streams->end()
             ? found->second
             : streams
                   ->emplace(
                       device.index(),
                       c10::impl::VirtualGuardImpl(device.type())
                           .getStreamFromGlobalPool(
                               device, /*isHighPriority=*/false))
                   .first->second;
}

std::string text_of(c10::Device device) {
  const auto& names = load_cuda_backend().device_names;
  const auto index = static_cast<size_t>(device.index());
  return index < names.size() && !names[index].empty()
             ? formatted("{} ({})", device.str(), names[index])
             : device.str();
}

/// Why the kernel cannot serve; nothing if it can.
std::optional<std::string> fault_of(
    const KernelProblem& problem,
    c10::Device device) {
  const at::DisableRecordFunctionGuard unobserved;
  const c10::StreamGuard guard(check_stream(device));
  try {
    const auto difference =
        difference_from_operators(problem, registered_kernels(), device);
    return difference ? std::optional(
                            "does not compute what LibTorch's operators do: " +
                            *difference)
                      : std::nullopt;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    return formatted("has failed on a small problem: {}", error.what());
  }
}

KernelState check(size_t kernel, c10::Device device) {
  const auto& all = kernel_problems();
  const auto problem =
      std::find_if(all.begin(), all.end(), [&](const KernelProblem& some) {
        return some.kernel == kernel;
      });
  TESSERA_CHECK(
      problem != all.end(), "kernel check: kernel {} has no problem", kernel);
  const auto fault = fault_of(*problem, device);
  if (!fault) {
    return KernelState::kServes;
  }
  log_warning(
      "the kernel {} on {} {}. LibTorch's operators take its place from here on, which is slower. Please report it; TESSERA_CHECK_KERNELS=0 uses the kernel all the same.",
      problem->name,
      text_of(device),
      *fault);
  return KernelState::kReplaced;
}

/// The state of a kernel that has not been checked, which this call may do.
KernelState state_after_check(
    std::atomic<KernelState>& state,
    size_t kernel,
    c10::Device device) {
  if (!is_check_wanted()) {
    state = KernelState::kServes;
    return KernelState::kServes;
  }
  const auto is_capturing = registered_kernels().is_capturing;
  if (is_capturing != nullptr && is_capturing()) {
    return KernelState::kServes;
  }
  const std::lock_guard lock(checks);
  if (state == KernelState::kUnchecked) {
    try {
      state = check(kernel, device);
    } catch (const c10::OutOfMemoryError&) {
      return KernelState::kServes;
    }
  }
  return state;
}

} // namespace

const DeviceKernels& checked_kernels(size_t kernel) {
  const c10::Device device = detail::current_kernel_device();
  auto& state =
      kernel_states.at(static_cast<size_t>(device.index())).at(kernel);
  KernelState local = state.load(std::memory_order_acquire);
  if (local == KernelState::kUnchecked) {
    local = state_after_check(state, kernel, device);
  }
  return local == KernelState::kReplaced ? operator_kernels()
                                         : registered_kernels();
}

} // namespace tessera::runtime
