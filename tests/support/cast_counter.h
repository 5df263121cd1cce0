// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CastCounter` counts conversions of the dtype of large tensors.

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

namespace tessera::tests {

/// While it lives, counts casts between dtypes of floating-point tensors of at
/// least `numel` elements, of all threads, in backward too. One at a time.
class CastCounter {
 public:
  explicit CastCounter(int64_t numel) {
    least_numel = numel;
    count_ = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& call)
                -> std::unique_ptr<at::ObserverContext> {
              if (std::string_view(call.name()) == "aten::_to_copy") {
                note(call);
              }
              return nullptr;
            })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~CastCounter() {
    at::removeCallback(handle_);
  }
  CastCounter(const CastCounter&) = delete;
  CastCounter& operator=(const CastCounter&) = delete;

  int64_t count() const {
    return count_;
  }

 private:
  static void note(const at::RecordFunction& call) {
    // _to_copy(self, dtype, ...)
    const auto inputs = call.inputs();
    const at::Tensor& from = inputs[0].toTensor();
    if (from.is_floating_point() && from.numel() >= least_numel &&
        inputs[1].isInt() &&
        static_cast<at::ScalarType>(inputs[1].toInt()) != from.scalar_type()) {
      ++count_;
    }
  }

  static inline std::atomic<int64_t> least_numel{0};
  static inline std::atomic<int64_t> count_{0};
  at::CallbackHandle handle_;
};

} // namespace tessera::tests
