// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/kernel_check.h"

#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/kernels/kernel_problems.h"
#include "tessera/runtime/kernels/kernel_trial.h"
#include "tessera/runtime/kernels/operator_tensors.h"

#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace tessera::runtime {

namespace {

std::array<std::array<std::atomic<KernelState>, kKernels>, kMostKernelDevices>
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

/// A kernel that is to be checked.
struct Candidate {
  std::string name;
  /// From the operators' results, on the device; nothing if there is none.
  std::function<std::optional<std::string>(c10::Device device)> difference;
};

/// Why the kernel cannot serve; nothing if it can.
std::optional<std::string> fault_of(
    const Candidate& kernel,
    c10::Device device) {
  const at::DisableRecordFunctionGuard unobserved;
  const c10::StreamGuard guard(check_stream(device));
  try {
    const auto difference = kernel.difference(device);
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

Candidate candidate_of(size_t kernel) {
  const auto& all = kernel_problems();
  const auto problem =
      std::find_if(all.begin(), all.end(), [&](const KernelProblem& some) {
        return some.kernel == kernel;
      });
  TESSERA_CHECK(
      problem != all.end(), "kernel check: kernel {} has no problem", kernel);
  return {problem->name, [problem](c10::Device device) {
            return difference_from_operators(
                *problem, registered_kernels(), device);
          }};
}

KernelState check(const Candidate& kernel, c10::Device device) {
  const auto fault = fault_of(kernel, device);
  if (!fault) {
    return KernelState::kServes;
  }
  log_warning(
      "the kernel {} on {} {}. LibTorch's operators take its place from here on, which is slower. Please report it; TESSERA_CHECK_KERNELS=0 uses the kernel all the same.",
      kernel.name,
      text_of(device),
      *fault);
  return KernelState::kReplaced;
}

/// The state of a kernel that has not been checked, which this call may do.
KernelState state_after_check(
    std::atomic<KernelState>& state,
    const std::function<Candidate()>& kernel,
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
      state = check(kernel(), device);
    } catch (const c10::OutOfMemoryError&) {
      return KernelState::kServes;
    }
  }
  return state;
}

/// Its state on the current device, checked if it has not been.
KernelState checked_state(
    std::atomic<KernelState>& state,
    const std::function<Candidate()>& kernel,
    c10::Device device) {
  const KernelState local = state.load(std::memory_order_acquire);
  return local == KernelState::kUnchecked
             ? state_after_check(state, kernel, device)
             : local;
}

} // namespace

const DeviceKernels& checked_kernels(size_t kernel) {
  const c10::Device device = detail::current_kernel_device();
  auto& state =
      kernel_states.at(static_cast<size_t>(device.index())).at(kernel);
  const KernelState local = checked_state(
      state, [kernel] { return candidate_of(kernel); }, device);
  return local == KernelState::kReplaced ? operator_kernels()
                                         : registered_kernels();
}

KernelTrial::KernelTrial(std::string name, Solve solve)
    : name_(std::move(name)), solve_(std::move(solve)) {}

bool KernelTrial::serves() {
  const c10::Device device = detail::current_kernel_device();
  const auto candidate = [this] {
    return Candidate{name_, [this](c10::Device on) { return difference(on); }};
  };
  return checked_state(
             states_.at(static_cast<size_t>(device.index())),
             candidate,
             device) != KernelState::kReplaced;
}

std::optional<std::string> KernelTrial::difference(c10::Device device) const {
  const detail::PlainOperators plain;
  auto found = solve_(/*by_operators=*/false, device);
  return difference_of_results(
      std::move(found), solve_(/*by_operators=*/true, device));
}

} // namespace tessera::runtime
