// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/dry_run/measured_call.h"

#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/runtime/memory/refused_allocation.h"
#include "tessera/runtime/profile/operator_flops.h"

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/native/ConvUtils.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

namespace tessera::runtime {

namespace measured_call {

namespace {

// More than this is not given to a kernel: it would take minutes.
constexpr size_t kMostMeasuredBytes = size_t{1} << 30;
// Of all examples that are run, if it can be had by running fewer.
constexpr double kMostMeasuredFlops = 2e10;

using Strides = std::vector<int64_t>;

/// A dimension that counts examples; from the end if negative.
struct BatchDim {
  size_t argument;
  int64_t dim;
};

/// Operators that treat examples independently, with the dimensions that count
/// these. Of an argument without batch, such as a loss's mean, none is changed.
const std::unordered_map<std::string, std::vector<BatchDim>>& batch_dims() {
  static const auto* const table =
      new std::unordered_map<std::string, std::vector<BatchDim>>{
          {"aten::convolution", {{0, 0}}},
          {"aten::convolution_backward", {{1, 0}, {0, 0}}},
          {"aten::mkldnn_rnn_layer", {{0, 1}, {5, -2}, {6, -2}}},
          {"aten::_adaptive_avg_pool2d", {{0, 0}}},
          {"aten::_adaptive_avg_pool2d_backward", {{1, 0}, {0, 0}}},
          {"aten::_adaptive_avg_pool3d", {{0, 0}}},
          {"aten::_adaptive_avg_pool3d_backward", {{1, 0}, {0, 0}}},
          {"aten::max_pool3d_with_indices", {{0, 0}}},
          {"aten::max_pool3d_with_indices_backward", {{1, 0}, {0, 0}, {7, 0}}},
          {"aten::reflection_pad2d", {{0, 0}}},
          {"aten::reflection_pad2d_backward", {{1, 0}, {0, 0}}},
          {"aten::replication_pad2d_backward", {{1, 0}, {0, 0}}},
          {"aten::replication_pad3d_backward", {{1, 0}, {0, 0}}},
          {"aten::grid_sampler_2d", {{0, 0}, {1, 0}}},
          {"aten::grid_sampler_2d_backward", {{1, 0}, {0, 0}, {2, 0}}},
          {"aten::grid_sampler_3d", {{0, 0}, {1, 0}}},
          {"aten::grid_sampler_3d_backward", {{1, 0}, {0, 0}, {2, 0}}},
          {"aten::im2col", {{0, 0}}},
          {"aten::col2im", {{0, -3}}},
      };
  return *table;
}

/// Nothing if the argument has no such dimension.
std::optional<int64_t> dim_of(const BatchDim& batch, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return std::nullopt;
  }
  const int64_t dim = batch.dim < 0 ? batch.dim + tensor.dim() : batch.dim;
  return dim >= 0 && dim < tensor.dim() ? std::optional(dim) : std::nullopt;
}

std::string name_of(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  return schema.overload_name().empty()
             ? schema.name()
             : schema.name() + "." + schema.overload_name();
}

/// A result without memory.
struct ResultShape {
  bool is_tensor = false;
  std::vector<int64_t> sizes;
  Strides strides;
  c10::TensorOptions options;
  bool is_list = false; ///< of tensors
  std::vector<ResultShape> items;
  c10::IValue other; ///< where it is neither, or an undefined tensor

  static ResultShape of(const c10::IValue& value) {
    ResultShape shape;
    if (value.isTensorList()) {
      shape.is_list = true;
      for (const at::Tensor& tensor : value.toTensorList()) {
        shape.items.push_back(of(c10::IValue(tensor)));
      }
    } else if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor& tensor = value.toTensor();
      shape.is_tensor = true;
      shape.sizes = tensor.sizes().vec();
      shape.strides = tensor.strides().vec();
      shape.options = tensor.options();
    } else {
      shape.other = value;
    }
    return shape;
  }

  c10::IValue made() const {
    if (is_list) {
      c10::List<at::Tensor> list;
      for (const ResultShape& item : items) {
        list.push_back(item.made().toTensor());
      }
      return list;
    }
    return is_tensor ? c10::IValue(at::empty_strided(sizes, strides, options))
                     : other;
  }
};

struct Measure {
  std::vector<ResultShape> results;
  int64_t temporary_bytes = 0;
};

/// Allocations of this thread come from another heap while it lives.
class ScratchAllocation {
 public:
  ScratchAllocation(std::shared_ptr<DryHeap> heap, bool has_values)
      : former_(std::exchange(
            dry_allocation(),
            DryAllocation{std::move(heap), has_values})) {}
  ~ScratchAllocation() {
    dry_allocation() = former_;
  }
  ScratchAllocation(const ScratchAllocation&) = delete;
  ScratchAllocation& operator=(const ScratchAllocation&) = delete;

 private:
  DryAllocation former_;
};

/// Strides of a tensor without gaps whose dimensions are ordered in memory as
/// those of `like`; its own where it has gaps or repeats elements.
Strides strides_like(
    const std::vector<int64_t>& sizes,
    at::IntArrayRef like_sizes,
    const Strides& like) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(like[a], like_sizes[a]) <
           std::pair(like[b], like_sizes[b]);
  });
  Strides dense(sizes.size());
  int64_t like_next = 1;
  int64_t next = 1;
  for (const size_t dim : order) {
    if (like_sizes[dim] != 1 && like[dim] != like_next) {
      return like;
    }
    dense[dim] = next;
    like_next *= like_sizes[dim];
    next *= sizes[dim];
  }
  return dense;
}

/// Runs the kernel once, on memory that is not counted.
Measure run_kernel(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack stack) {
  const auto heap = std::make_shared<DryHeap>();
  const ScratchAllocation scratch(heap, true);
  const DryValues computing;
  op.redispatchBoxed(keys, &stack);
  Measure measure;
  int64_t result_bytes = 0;
  const auto add = [&](const at::Tensor& tensor) {
    result_bytes +=
        tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  };
  for (const c10::IValue& value : stack) {
    measure.results.push_back(ResultShape::of(value));
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        add(tensor);
      }
    } else if (value.isTensor()) {
      add(value.toTensor());
    }
  }
  measure.temporary_bytes =
      std::max<int64_t>(0, heap->peak_bytes() - result_bytes);
  return measure;
}

/// The arguments with `rows` examples, without values.
torch::jit::Stack with_examples(
    const DryCall& call,
    const std::vector<BatchDim>& dims,
    int64_t all,
    int64_t rows) {
  torch::jit::Stack stack = call.arguments().vec();
  const ScratchAllocation scratch(std::make_shared<DryHeap>(), false);
  for (const BatchDim& batch : dims) {
    const at::Tensor tensor = call.tensor(batch.argument);
    const std::optional<int64_t> dim = dim_of(batch, tensor);
    if (!dim || tensor.size(*dim) != all) {
      continue;
    }
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes[static_cast<size_t>(*dim)] = rows;
    stack[batch.argument] = at::empty_strided(
        sizes,
        strides_like(sizes, tensor.sizes(), tensor.strides().vec()),
        tensor.options());
  }
  return stack;
}

/// What grows evenly with the number of examples.
struct Growth {
  int64_t first_rows;
  int64_t second_rows;
  int64_t rows;

  int64_t operator()(int64_t first, int64_t second) const {
    return first +
           (second - first) * (rows - first_rows) / (second_rows - first_rows);
  }
};

Measure grown(const Measure& first, const Measure& second, Growth growth) {
  Measure measure = second;
  measure.temporary_bytes = std::max(
      second.temporary_bytes,
      growth(first.temporary_bytes, second.temporary_bytes));
  for (size_t i = 0; i < measure.results.size(); ++i) {
    ResultShape& result = measure.results[i];
    for (size_t dim = 0; dim < result.sizes.size(); ++dim) {
      result.sizes[dim] =
          growth(first.results[i].sizes[dim], result.sizes[dim]);
    }
    if (result.is_tensor) {
      result.strides =
          strides_like(result.sizes, second.results[i].sizes, result.strides);
    }
  }
  return measure;
}

/// What the results and the memory of a call depend on.
std::string key_of(const c10::OperatorHandle& op, const DryCall& call) {
  std::ostringstream key;
  key << name_of(op) << ' ' << at::get_num_threads() << ' '
      << at::globalContext().userEnabledMkldnn()
      << at::globalContext().deterministicAlgorithms();
  for (size_t i = 0; i < call.count(); ++i) {
    const c10::IValue& value = call.argument(i);
    key << " | ";
    if (!value.isTensor() && !value.isTensorList() &&
        !value.isOptionalTensorList() && !value.isGenerator()) {
      key << value;
    }
  }
  call.for_each_tensor([&](const at::Tensor& tensor, size_t i) {
    key << " " << i << tensor.scalar_type() << tensor.sizes()
        << tensor.strides();
  });
  return key.str();
}

/// As operator_flops(), and those of recurrent layers.
double call_flops(const DryCall& call) {
  const bool is_backward = call.name() == "aten::mkldnn_rnn_layer_backward";
  if (!is_backward && call.name() != "aten::mkldnn_rnn_layer") {
    return operator_flops(call.name(), call.arguments()).all;
  }
  const at::Tensor x = call.tensor(0);
  const auto steps =
      static_cast<double>(x.numel() / std::max<int64_t>(1, x.size(-1)));
  return (is_backward ? 4.0 : 2.0) * steps *
         static_cast<double>(call.tensor(1).numel() + call.tensor(2).numel());
}

size_t argument_bytes(const DryCall& call) {
  size_t bytes = 0;
  call.for_each_tensor(
      [&](const at::Tensor& tensor, size_t) { bytes += tensor.nbytes(); });
  return bytes;
}

/// How many of the examples are run: all, or a number that is even.
struct MeasuredRows {
  int64_t all = 1; ///< examples of the call
  int64_t measured = 1;
};

/// Which of LibTorch's kernels a convolution of `rows` examples runs: that
/// depends on their number.
std::optional<at::native::ConvBackend> kernel_of(
    const DryCall& call,
    const std::vector<BatchDim>& dims,
    int64_t all,
    int64_t rows) {
  const bool is_backward = call.name() == "aten::convolution_backward";
  if (!is_backward && call.name() != "aten::convolution") {
    return std::nullopt;
  }
  const torch::jit::Stack stack = with_examples(call, dims, all, rows);
  const size_t first = is_backward ? 1 : 0;
  const at::Tensor bias = is_backward ? at::Tensor() : call.tensor(2);
  std::vector<c10::SymInt> bias_sizes;
  if (is_backward && !call.argument(3).isNone()) {
    for (const int64_t size : call.ints(3)) {
      bias_sizes.emplace_back(size);
    }
  }
  const auto ints = [&](size_t i) {
    const std::vector<int64_t> list = call.ints(first + i);
    return std::vector<c10::SymInt>(list.begin(), list.end());
  };
  return at::native::select_conv_backend(
      stack[first].toTensor(),
      call.tensor(first + 1),
      bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt,
      ints(3),
      ints(4),
      ints(5),
      call.flag(first + 6),
      ints(7),
      call.integer(first + 8),
      is_backward && !bias_sizes.empty()
          ? at::OptionalSymIntArrayRef(bias_sizes)
          : at::OptionalSymIntArrayRef());
}

MeasuredRows measured_rows(
    const DryCall& call,
    const std::vector<BatchDim>& dims) {
  const BatchDim& first = dims.front();
  const at::Tensor tensor = call.tensor(first.argument);
  const std::optional<int64_t> dim = dim_of(first, tensor);
  const int64_t all = dim ? tensor.size(*dim) : 1;
  if (all <= 1) {
    return {all, all};
  }
  // Enough for kernels that divide the examples among threads; fewer where
  // that takes seconds.
  const int64_t many = 2 * std::max<int64_t>(4, at::get_num_threads());
  const double flops = call_flops(call) / static_cast<double>(all);
  int64_t rows =
      flops * static_cast<double>(many) <= kMostMeasuredFlops ? many : 2;
  const auto kernel = kernel_of(call, dims, all, all);
  while (rows < all && (kernel_of(call, dims, all, rows) != kernel ||
                        kernel_of(call, dims, all, rows / 2) != kernel)) {
    rows *= 2;
  }
  return {all, std::min(rows, all)};
}

bool is_too_large(const DryCall& call, MeasuredRows rows) {
  const auto all = static_cast<double>(std::max<int64_t>(rows.all, 1));
  const double share = static_cast<double>(rows.measured) / all;
  return static_cast<double>(argument_bytes(call)) * share >
             static_cast<double>(kMostMeasuredBytes) ||
         call_flops(call) * share > 8 * kMostMeasuredFlops;
}

std::optional<Measure> measure_now(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    const DryCall& call) {
  const auto found = batch_dims().find(name_of(op));
  const MeasuredRows rows = found == batch_dims().end()
                                ? MeasuredRows()
                                : measured_rows(call, found->second);
  if (is_too_large(call, rows)) {
    return std::nullopt;
  }
  if (rows.measured == rows.all) {
    return run_kernel(op, keys, call.arguments().vec());
  }
  const auto run = [&](int64_t count) {
    return run_kernel(
        op, keys, with_examples(call, found->second, rows.all, count));
  };
  const int64_t half = rows.measured / 2;
  return grown(run(half), run(rows.measured), {half, rows.measured, rows.all});
}

/// Whether a call with the same shapes has the same results. Not those of
/// operators of others, which may depend on anything, and not where numbers
/// such as lengths have values.
bool depends_on_shapes(const c10::OperatorHandle& op, const DryCall& call) {
  if (!shaping_arguments(op, call).empty()) {
    return false;
  }
  if (batch_dims().count(name_of(op)) > 0) {
    return true;
  }
  bool has_numbers = false;
  call.for_each_tensor([&](const at::Tensor& tensor, size_t) {
    has_numbers =
        has_numbers ||
        (c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) &&
         tensor.has_storage() && tensor.numel() > 0 &&
         has_dry_values(tensor.storage().data()));
  });
  return !has_numbers && call.name().starts_with("aten::");
}

bool is_mask(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
}

/// An allocation of a product, by its number; it ends there. 0 if it has not as
/// many, and ends at its end.
/// @param a as for product_working_bytes(), @param b likewise; only their
///   shapes count.
size_t asked_bytes(const at::Tensor& a, const at::Tensor& b, int number) {
  // Tensors without the dispatch keys of their own: paged weights have some.
  const ScratchAllocation scratch(
      std::make_shared<DryHeap>(), /*has_values=*/true);
  const auto like = [](const at::Tensor& x) {
    return at::empty_strided(
        x.sizes(), x.strides(), at::device(at::kCPU).dtype(x.scalar_type()));
  };
  const at::Tensor left = like(a);
  const at::Tensor right = like(b);
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  at::Tensor out = at::empty(sizes, left.options());
  const RefuseAllocations refuse(number);
  try {
    if (a.dim() == 2) {
      at::cpu::mm_out(out, left, right);
    } else {
      at::cpu::bmm_out(out, left, right);
    }
  } catch (const RefusedAllocation& refused) {
    return refused.bytes;
  }
  return 0;
}

/// Whether LibTorch multiplies with oneDNN, so that products end as they begin:
/// small ones in all orders of the factors' memory say so.
bool takes_working_memory(at::ScalarType dtype) {
  constexpr int64_t kSize = 256;
  const at::Tensor x =
      at::empty({kSize, kSize}, at::device(at::kCPU).dtype(dtype));
  return asked_bytes(x, x, 0) > 0 && asked_bytes(x, x.t(), 0) > 0 &&
         asked_bytes(x.t(), x, 0) > 0;
}

/// All that a product asks for: copies of factors, and then working memory.
int64_t working_bytes(const at::Tensor& a, const at::Tensor& b) {
  // Larger copies would take time and pages.
  constexpr size_t kLargestCopy = size_t{64} << 20;
  size_t all = 0;
  for (int number = 0; number < 3; ++number) {
    const size_t bytes = asked_bytes(a, b, number);
    all += bytes;
    const bool is_copy = bytes == a.nbytes() || bytes == b.nbytes();
    if (!is_copy || bytes > kLargestCopy) {
      break;
    }
  }
  return static_cast<int64_t>(all);
}

/// The sizes that oneDNN can be asked for.
bool has_usual_sizes(const at::Tensor& x) {
  return std::all_of(x.sizes().begin(), x.sizes().end(), [](int64_t size) {
    return size > 0 && size < (int64_t{1} << 31);
  });
}

std::string product_key(const at::Tensor& a, const at::Tensor& b) {
  std::ostringstream key;
  key << a.scalar_type() << at::get_num_threads()
      << at::globalContext().userEnabledMkldnn();
  for (const at::Tensor& x : {a, b}) {
    key << x.sizes() << x.strides();
  }
  return key.str();
}

} // namespace

} // namespace measured_call

int64_t product_working_bytes(const at::Tensor& a, const at::Tensor& b) {
  using namespace measured_call;
  const bool can_multiply =
      c10::isReducedFloatingType(a.scalar_type()) &&
      a.scalar_type() == b.scalar_type() && a.layout() == at::kStrided &&
      b.layout() == at::kStrided && a.dim() == b.dim() &&
      (a.dim() == 2 || (a.dim() == 3 && a.size(0) == b.size(0))) &&
      a.size(-1) == b.size(-2) && has_usual_sizes(a) && has_usual_sizes(b);
  if (!can_multiply) {
    return 0;
  }
  static std::mutex mutex;
  // Never destroyed, like those of measured_results().
  static auto* const known = new std::unordered_map<std::string, int64_t>();
  const std::lock_guard lock(mutex);
  const auto bytes_of = [](const std::string& key, const auto& measure) {
    const auto found = known->find(key);
    return found != known->end() ? found->second
                                 : known->emplace(key, measure()).first->second;
  };
  std::ostringstream all;
  all << a.scalar_type() << at::globalContext().userEnabledMkldnn();
  const int64_t some = bytes_of(all.str(), [&] {
    return takes_working_memory(a.scalar_type()) ? int64_t{1} : int64_t{0};
  });
  return some == 0
             ? 0
             : bytes_of(product_key(a, b), [&] { return working_bytes(a, b); });
}

bool is_always_measured(const std::string& name) {
  return name == "aten::convolution" || name == "aten::convolution_backward" ||
         name == "aten::mkldnn_rnn_layer" ||
         name == "aten::mkldnn_rnn_layer_backward";
}

std::vector<size_t> shaping_arguments(
    const c10::OperatorHandle& op,
    const DryCall& call) {
  if (!op.hasTag(at::Tag::dynamic_output_shape) ||
      call.name() == "aten::_ctc_loss") { // lengths, which are numbers
    return {};
  }
  if (call.name() == "aten::masked_select") {
    return {1};
  }
  if (call.name() == "aten::repeat_interleave" && !call.argument(1).isNone()) {
    return {}; // the number of results
  }
  if (call.name() == "aten::index") {
    bool has_mask = false;
    call.for_each_tensor([&](const at::Tensor& tensor, size_t i) {
      has_mask = has_mask || (i == 1 && measured_call::is_mask(tensor));
    });
    return has_mask ? std::vector<size_t>{1} : std::vector<size_t>{};
  }
  return {0};
}

std::string place_in_model(const std::string& module) {
  return module.empty() ? std::string("before the first layer")
                        : "in or after the layer '" + module + "'";
}

std::optional<std::vector<c10::IValue>> measured_results(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    const DryCall& call) {
  using measured_call::Measure;
  static std::mutex mutex;
  // Never destroyed: another thread may plan at the end of the process.
  static auto* const known =
      new std::unordered_map<std::string, std::optional<Measure>>();
  const bool is_kept = measured_call::depends_on_shapes(op, call);
  const std::string key = is_kept ? measured_call::key_of(op, call) : "";
  std::optional<Measure> measure;
  bool is_known = false;
  if (is_kept) {
    const std::lock_guard lock(mutex);
    if (const auto found = known->find(key); found != known->end()) {
      measure = found->second;
      is_known = true;
    }
  }
  if (!is_known) {
    measure = measured_call::measure_now(op, keys, call);
    if (is_kept) {
      const std::lock_guard lock(mutex);
      known->emplace(key, measure);
    }
  }
  if (!measure) {
    return std::nullopt;
  }
  std::vector<c10::IValue> results;
  for (const measured_call::ResultShape& result : measure->results) {
    results.push_back(result.made());
  }
  const DryRun* run = DryRun::current();
  if (run != nullptr && run->target() == c10::kCPU) {
    const at::Tensor temporary =
        at::empty({measure->temporary_bytes}, at::kByte);
  }
  return results;
}

} // namespace tessera::runtime
