// SPDX-License-Identifier: Apache-2.0
// Computes lazy values.
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/lazy_recorder.h"
#include "tessera/sharding/lazy/lazy_value.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

namespace tessera::sharding {

namespace {

using ValueKind = LazyValue::Kind;
using ValuePtr = std::shared_ptr<LazyValue>;

/// Shorter than what LibTorch divides among threads.
constexpr int64_t kReplayChunkNumel = 16384;

/// Returns the chain of values from the first one that does not depend on a
/// previous one to `value`.
std::vector<const LazyValue*> steps_of(const ValuePtr& value) {
  std::vector<const LazyValue*> steps;
  for (const LazyValue* at = value.get(); at != nullptr;
       at = at->previous.get()) {
    steps.push_back(at);
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

at::Tensor zeros_for(const LazyValue& value, int64_t numel) {
  return at::zeros({numel}, at::TensorOptions().dtype(value.dtype));
}

/// Fills elements [begin, begin + target.numel()) of the step's own range.
void draw(const LazyValue& step, const at::Tensor& target, int64_t begin) {
  if (step.kind == ValueKind::kUniform) {
    fill_uniform(
        target,
        step.random.numbers(),
        begin,
        step.first.toDouble(),
        step.second);
  } else if (step.kind == ValueKind::kNormal) {
    fill_normal(
        target,
        step.random.numbers(),
        begin,
        step.first.toDouble(),
        step.second);
  } else {
    target.fill_(step.first);
  }
}

/// The intersection of two ranges.
struct Overlap {
  int64_t begin = 0; ///< in the storage
  int64_t numel = 0;
};

Overlap overlap_of(const LazyValue& step, int64_t begin, int64_t numel) {
  const int64_t from = std::max(begin, step.view.offset);
  const int64_t to =
      std::min(begin + numel, step.view.offset + step.view.numel());
  return {from, std::max<int64_t>(to - from, 0)};
}

/// Fills and draws in place.
/// @param slice elements starting at `begin`.
void fill_directly(
    const ValuePtr& value,
    const at::Tensor& slice,
    int64_t begin) {
  for (const LazyValue* step : steps_of(value)) {
    if (step->kind == ValueKind::kEmpty) {
      slice.zero_();
      continue;
    }
    const Overlap part = overlap_of(*step, begin, slice.numel());
    if (part.numel > 0) {
      draw(
          *step,
          slice.narrow(0, part.begin - begin, part.numel),
          part.begin - step->view.offset);
    }
  }
}

std::vector<c10::IValue> run(
    const LazyCall& call,
    std::vector<c10::IValue> stack) {
  try {
    call.op.callBoxed(stack);
  } catch (const c10::Error& error) {
    TESSERA_FAIL(
        "a tensor made under tessera::lazy: {} failed while its values were computed: {}",
        call.op.schema().name(),
        error.what_without_backtrace());
  }
  return stack;
}

/// Computes elements [begin, begin + numel) of a value that is computed by
/// slice.
at::Tensor make_slice(const ValuePtr& value, int64_t begin, int64_t numel);

/// Runs `step`'s call for a part of its view.
/// @param local this part of the storage before the call; undefined for
/// kResult.
at::Tensor call_for_part(
    const LazyValue& step,
    const Overlap& part,
    const at::Tensor& local) {
  const LazyCall& call = *step.call;
  const int64_t from = part.begin - step.view.offset;
  std::vector<c10::IValue> stack;
  const auto values = [&](const at::Tensor& tensor) -> at::Tensor {
    if (tensor.unsafeGetTensorImpl() == call.target) {
      return local;
    }
    const auto found = call.lazy.find(tensor.unsafeGetTensorImpl());
    if (found == call.lazy.end()) {
      if (tensor.dim() == 0) {
        return tensor;
      }
      return tensor.as_strided(
          {part.numel}, {1}, tensor.storage_offset() + from);
    }
    const LazyArgument& lazy = found->second;
    if (local.defined() && lazy.value == step.previous) {
      return local.clone(); // elementwise: same position, see finish()
    }
    return make_slice(lazy.value, lazy.view.offset + from, part.numel);
  };
  for (const c10::IValue& argument : call.arguments) {
    stack.push_back(
        argument.isTensor() ? map_tensors(argument, values) : argument);
  }
  const auto results = run(call, std::move(stack));
  return step.kind == ValueKind::kResult ? results[step.output].toTensor()
                                         : at::Tensor();
}

at::Tensor make_slice(const ValuePtr& value, int64_t begin, int64_t numel) {
  at::Tensor slice;
  for (const LazyValue* step : steps_of(value)) {
    const Overlap part = overlap_of(*step, begin, numel);
    if (step->kind == ValueKind::kResult) {
      // The result may be an argument that the operator passed through.
      slice = call_for_part(*step, part, {}).clone();
      continue;
    }
    if (!slice.defined()) {
      slice = zeros_for(*value, numel);
    }
    if (step->kind == ValueKind::kEmpty || part.numel == 0) {
      continue;
    }
    const at::Tensor local = slice.narrow(0, part.begin - begin, part.numel);
    if (step->kind == ValueKind::kWrite) {
      call_for_part(*step, part, local);
    } else {
      draw(*step, local, part.begin - step->view.offset);
    }
  }
  return slice;
}

/// Makes a generator, from the value's own stream, for a random operator other
/// than fills.
at::Generator generator_of(const RandomStream& random) {
  return at::detail::createCPUGenerator(
      random.seed ^ (random.stream * 0x9E3779B97F4A7C15));
}

/// Computes values whole. A value that several others need is computed once.
class FullMaker {
 public:
  at::Tensor make(const ValuePtr& value) {
    const auto found = made_.find(value.get());
    if (found != made_.end()) {
      return found->second;
    }
    at::Tensor memory;
    if (value->by_slice) {
      memory = zeros_for(*value, value->numel);
      LazyFill{value}(memory, 0);
    } else {
      for (const LazyValue* step : steps_of(value)) {
        apply(*step, memory);
      }
    }
    made_.emplace(value.get(), memory);
    return memory;
  }

 private:
  void apply(const LazyValue& step, at::Tensor& memory) {
    if (!memory.defined()) {
      memory = zeros_for(step, step.numel);
    }
    switch (step.kind) {
      case ValueKind::kEmpty:
        return;
      case ValueKind::kFill:
      case ValueKind::kUniform:
      case ValueKind::kNormal:
        if (step.view.is_dense()) {
          draw(step, memory.narrow(0, step.view.offset, step.view.numel()), 0);
        } else {
          const at::Tensor values = zeros_for(step, step.view.numel());
          draw(step, values, 0);
          step.view.in(memory).copy_(values.view(step.view.sizes));
        }
        return;
      case ValueKind::kWrite:
        call(step, memory);
        return;
      case ValueKind::kResult:
        step.view.in(memory).copy_(call(step, {})[step.output].toTensor());
        return;
    }
  }

  std::vector<c10::IValue> call(
      const LazyValue& step,
      const at::Tensor& memory) {
    const LazyCall& call = *step.call;
    const auto known = results_.find(&call);
    if (known != results_.end()) {
      return known->second;
    }
    std::vector<c10::IValue> stack;
    const auto values = [&](const at::Tensor& tensor) -> at::Tensor {
      if (tensor.unsafeGetTensorImpl() == call.target) {
        return step.view.in(memory);
      }
      const auto found = call.lazy.find(tensor.unsafeGetTensorImpl());
      if (found == call.lazy.end()) {
        return tensor;
      }
      const LazyArgument& lazy = found->second;
      if (memory.defined() && lazy.value == step.previous) {
        return lazy.view.in(memory);
      }
      return lazy.view.in(make(lazy.value));
    };
    const auto& schema = call.op.schema().arguments();
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      if (call.op.hasTag(at::Tag::nondeterministic_seeded) &&
          schema[i].name() == "generator") {
        stack.emplace_back(generator_of(call.random.numbers()));
      } else {
        stack.push_back(map_tensors(call.arguments[i], values));
      }
    }
    auto results = run(call, std::move(stack));
    if (step.kind == ValueKind::kResult) {
      results_.emplace(&call, results);
    }
    return results;
  }

  std::unordered_map<const LazyValue*, at::Tensor> made_;
  std::unordered_map<const LazyCall*, std::vector<c10::IValue>> results_;
};

/// Operators in its scope are run, not recorded, without autograd.
struct PlainOperators {
  c10::NoGradGuard no_grad;
  NotRecorded not_recorded;
};

/// The bits of a decomposition depend on the number of threads.
struct OneThread {
  OneThread() {
    at::set_num_threads(1);
  }
  ~OneThread() {
    at::set_num_threads(before);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  int before = at::get_num_threads();
};

} // namespace

void LazyFill::operator()(const at::Tensor& slice, int64_t first_element)
    const {
  const PlainOperators plain;
  if (value->fills_only) {
    fill_directly(value, slice, first_element);
    return;
  }
  if (!value->by_slice) {
    const at::Tensor full = make_full(value);
    slice.copy_(full.narrow(0, first_element, slice.numel()));
    return;
  }
  const int64_t end = first_element + slice.numel();
  for (int64_t chunk_begin =
           first_element / kReplayChunkNumel * kReplayChunkNumel;
       chunk_begin < end;
       chunk_begin += kReplayChunkNumel) {
    const int64_t numel =
        std::min(kReplayChunkNumel, value->numel - chunk_begin);
    const at::Tensor values = make_slice(value, chunk_begin, numel);
    const int64_t from = std::max(chunk_begin, first_element);
    const int64_t to = std::min(chunk_begin + numel, end);
    slice.narrow(0, from - first_element, to - from)
        .copy_(values.narrow(0, from - chunk_begin, to - from));
  }
}

at::Tensor make_full(const ValuePtr& value) {
  const PlainOperators plain;
  const OneThread one_thread;
  return FullMaker().make(value);
}

} // namespace tessera::sharding
