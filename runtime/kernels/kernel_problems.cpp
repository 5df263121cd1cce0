// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/kernel_problems.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/runtime/kernels/kernel_trial.h"
#include "tessera/runtime/kernels/operator_tensors.h"
#include "tessera/runtime/kernels/update_checks.h"
#include "tessera/runtime/random/counter_random.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

namespace tessera::runtime {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Arrays of a device with values that only depend on how many there were
/// before.
class ProblemArrays {
 public:
  explicit ProblemArrays(c10::Device device) : device_(device) {}

  at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions(device_).dtype(dtype);
  }
  /// [numel] in [low, high). @param offset elements from aligned memory.
  at::Tensor values(
      int64_t numel,
      at::ScalarType dtype,
      double low,
      double high,
      int64_t offset = 0) {
    const at::Tensor host = at::empty({numel}, dtype);
    fill_uniform(host, {/*seed=*/11, stream_++}, 0, low, high);
    return on_device(host, offset);
  }
  at::Tensor on_device(const at::Tensor& host, int64_t offset = 0) const {
    return at::empty({host.numel() + offset}, options(host.scalar_type()))
        .narrow(0, offset, host.numel())
        .copy_(host);
  }

 private:
  c10::Device device_;
  uint64_t stream_ = 0;
};

template <typename T>
constexpr at::ScalarType kMasterDtype =
    std::is_same_v<T, double> ? at::kDouble : at::kFloat;

/// The bits are the same in float32; in float64, an fma of the operators rounds
/// twice.
template <typename T>
constexpr double kUpdateTolerance = std::is_same_v<T, double> ? 1e-14 : 0;

struct SegmentFormat {
  int64_t numel;
  int64_t offset;
  std::optional<at::ScalarType> grad = {}; ///< by default that of the master
  std::optional<at::ScalarType> state = {};
  std::optional<at::ScalarType> low = {};
  bool has_factor = false;
  bool is_stochastic = false;
};

/// Packs of 16 bytes with a rest, more than one block of them; arrays that are
/// not aligned for packs; noise where the numbers of elements pass 2^32.
const std::vector<SegmentFormat>& segment_formats() {
  static const std::vector<SegmentFormat> formats = {
      {.numel = 1029, .offset = 0},
      {.numel = 259,
       .offset = 1,
       .grad = at::kBFloat16,
       .state = at::kBFloat16,
       .low = at::kBFloat16},
      {.numel = 64,
       .offset = 0,
       .grad = at::kHalf,
       .low = at::kHalf,
       .has_factor = true},
      {.numel = 39,
       .offset = 0,
       .grad = at::kBFloat16,
       .state = at::kBFloat16,
       .low = at::kBFloat16,
       .is_stochastic = true},
      {.numel = 3, .offset = 2}};
  return formats;
}

/// Hyperparameters of which none leaves out a part of the arithmetic.
template <typename Step>
Step example_step() {
  Step step;
  step.lr = 1e-2;
  step.weight_decay = 0.1;
  step.grad_scale = 0.3;
  if constexpr (requires { step.step; }) {
    step.step = 3;
  }
  if constexpr (requires { step.momentum; }) {
    step.momentum = 0.9;
    step.nesterov = true;
  }
  return step;
}

template <typename Step>
UpdateTensors tensors_of_segment(
    ProblemArrays& arrays,
    const SegmentFormat& format,
    at::ScalarType master,
    const Step& step) {
  const auto values = [&](at::ScalarType dtype, double low) {
    return arrays.values(format.numel, dtype, low, 1, format.offset);
  };
  UpdateTensors tensors;
  tensors.master = values(master, -1);
  tensors.grad = values(format.grad.value_or(master), -1);
  for (size_t k = 0; k < static_cast<size_t>(step.states()); ++k) {
    *tensors.states()[k] = values(format.state.value_or(master), 0.1);
  }
  if (format.low) {
    tensors.low_precision = values(*format.low, -1);
  }
  if (format.has_factor) {
    tensors.grad_factor = at::full({}, 0.7, arrays.options(at::kDouble));
  }
  return tensors;
}

/// The runs of a problem; tensors and shards of the same numbers belong
/// together.
template <typename Shard>
struct ProblemSegments {
  std::vector<UpdateTensors> tensors;
  std::vector<Shard> shards;

  template <typename Step>
  void add(ProblemArrays& arrays, const SegmentFormat& format, Step step) {
    if (format.is_stochastic) {
      step.rounding = {
          .enabled = true,
          .seed = 5,
          .first_element = (uint64_t{1} << 32) - 20};
    }
    using T = typename Shard::Master;
    tensors.push_back(
        tensors_of_segment(arrays, format, kMasterDtype<T>, step));
    shards.push_back(detail::make_shard<Shard>(
        detail::UpdateChecks("kernel check"), tensors.back(), step));
  }

  std::vector<KernelResult> results() const {
    constexpr double kTolerance = kUpdateTolerance<typename Shard::Master>;
    std::vector<KernelResult> all;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto add_result = [&](const std::string& name,
                                  const at::Tensor& values) {
        if (values.defined()) {
          all.push_back(
              {.name = formatted("{} of run {}", name, i),
               .values = values,
               .of_largest = kTolerance});
        }
      };
      add_result("the weights", tensors[i].master);
      add_result("the low-precision weights", tensors[i].low_precision);
      for (size_t k = 0; k < UpdateTensors::kStates; ++k) {
        add_result(
            formatted("state {}", k), *std::as_const(tensors[i]).states()[k]);
      }
    }
    return all;
  }
};

const char* name_of_master(at::ScalarType dtype) {
  return dtype == at::kDouble ? "float64" : "float32";
}

template <typename T>
KernelProblem update_problem(size_t kernel, const auto& step) {
  using Step = std::decay_t<decltype(step)>;
  return {
      .kernel = kernel,
      .name =
          formatted("{} of {}", Step::kName, name_of_master(kMasterDtype<T>)),
      .run = [step](const DeviceKernels& kernels, c10::Device device) {
        ProblemArrays arrays(device);
        ProblemSegments<ShardOf<T, Step>> segments;
        for (const SegmentFormat& format : segment_formats()) {
          segments.add(arrays, format, step);
        }
        if constexpr (requires { step.momentum; }) {
          Step without = step;
          without.momentum = 0;
          without.nesterov = false;
          segments.add(arrays, {.numel = 37, .offset = 0}, without);
        }
        kernels.update(std::span<const ShardOf<T, Step>>(segments.shards));
        return segments.results();
      }};
}

template <typename T>
ProblemSegments<LambShard<T>> lamb_segments(ProblemArrays& arrays) {
  ProblemSegments<LambShard<T>> segments;
  for (const SegmentFormat& format : segment_formats()) {
    segments.add(arrays, format, example_step<AdamWStep>());
    // The trust ratio of the second half.
    segments.shards.back().rule.lr_factor = segments.shards.back().grad_factor;
  }
  return segments;
}

template <typename T>
KernelProblem lamb_weights_problem(size_t kernel) {
  return {
      .kernel = kernel,
      .name = formatted("lamb_weights_ of {}", name_of_master(kMasterDtype<T>)),
      .run = [](const DeviceKernels& kernels, c10::Device device) {
        ProblemArrays arrays(device);
        const auto segments = lamb_segments<T>(arrays);
        kernels.update(std::span<const LambShard<T>>(segments.shards));
        return segments.results();
      }};
}

template <typename T>
KernelProblem lamb_moments_problem(size_t kernel) {
  return {
      .kernel = kernel,
      .name = formatted("lamb_moments_ of {}", name_of_master(kMasterDtype<T>)),
      .run = [](const DeviceKernels& kernels, c10::Device device) {
        ProblemArrays arrays(device);
        const auto segments = lamb_segments<T>(arrays);
        const at::Tensor partial = at::zeros(
            {static_cast<int64_t>(segments.shards.size()), kLambCudaBlocks, 2},
            arrays.options(at::kDouble));
        kernels.lamb_moments(
            std::span<const LambShard<T>>(segments.shards),
            partial.mutable_data_ptr<double>());
        auto results = segments.results();
        // Sums in any order, of which those of float32 may begin in float32.
        results.push_back(
            {.name = "the sums of squares",
             .values = partial.sum(1),
             .relative = std::is_same_v<T, double> ? 1e-12 : 1e-6});
        return results;
      }};
}

template <typename... Steps>
void add_update_problems(
    std::vector<KernelProblem>& all,
    StepList<Steps...> /*steps*/) {
  // In the order of UpdateShards.
  size_t kernel = 0;
  (all.push_back(update_problem<float>(kernel++, example_step<Steps>())), ...);
  (all.push_back(update_problem<double>(kernel++, example_step<Steps>())), ...);
  all.push_back(lamb_weights_problem<float>(kernel++));
  all.push_back(lamb_weights_problem<double>(kernel++));
  all.push_back(lamb_moments_problem<float>(kFirstMoments));
  all.push_back(lamb_moments_problem<double>(kFirstMoments + 1));
}

constexpr std::array<ElementType, kElementTypes> kAllTypes = {
    ElementType::kFloat32,
    ElementType::kFloat64,
    ElementType::kFloat16,
    ElementType::kBFloat16};

std::string name_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kFloat64:
      return "float64";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kBFloat16:
      return "bfloat16";
  }
  return "";
}

/// Copies, scaled copies, sums, and zeros, of all types, with more than one
/// block of packs (of at most 2048 elements) and unaligned. Factors of sums are
/// powers of two, so that it does not matter whether a product is rounded.
KernelProblem pack_problem(ElementType target) {
  return {
      .kernel = pack_kernel_of(target),
      .name = "pack_segments_ to " + name_of(target),
      .run = [target](const DeviceKernels& kernels, c10::Device device) {
        ProblemArrays arrays(device);
        const at::ScalarType dtype = detail::dtype_of(target);
        std::vector<KernelResult> results;
        const auto pack = [&](double factor, PackMode mode) {
          std::vector<at::Tensor> sources; // until they have been read
          std::vector<PackShard> shards;
          const auto add = [&](const void* source,
                               ElementType type,
                               int64_t numel,
                               int64_t offset) {
            const at::Tensor into = arrays.values(numel, dtype, -1, 1, offset);
            shards.push_back({source, into.mutable_data_ptr(), numel, type});
            results.push_back(
                {.name = formatted(
                     "run {} of {}, {} by {}",
                     shards.size() - 1,
                     name_of(type),
                     mode == PackMode::kAdd ? "added" : "copied",
                     factor),
                 .values = into});
          };
          for (const ElementType type : kAllTypes) {
            for (const auto& [numel, offset] :
                 {std::pair<int64_t, int64_t>{2067, 0}, {70, 1}}) {
              sources.push_back(
                  arrays.values(numel, detail::dtype_of(type), -1, 1, offset));
              add(sources.back().const_data_ptr(), type, numel, offset);
            }
          }
          if (mode == PackMode::kCopy) {
            add(nullptr, target, 21, 0);
            add(nullptr, target, 9, 1);
          }
          kernels.pack(shards, target, factor, mode);
        };
        pack(1, PackMode::kCopy);
        pack(1.0 / 3, PackMode::kCopy);
        pack(0.25, PackMode::kAdd);
        return results;
      }};
}

const char* name_of(CodeType code) {
  switch (code) {
    case CodeType::kInt8:
      return "int8";
    case CodeType::kInt4:
      return "int4";
    case CodeType::kFp8:
      return "fp8";
    case CodeType::kSign:
      return "signs";
    case CodeType::kNf4:
      return "nf4";
  }
  return "";
}

struct BlockExample {
  BlockFormat format;
  int64_t numel; ///< of a part
};

/// In blocks below and above the threads of a block, with a rest; nf4 in packs
/// too, and with two groups of compact scales.
std::vector<BlockExample> block_examples(CodeType code) {
  std::vector<BlockExample> examples{{{code, 16}, 1371}, {{code, 256}, 1371}};
  if (code == CodeType::kNf4) {
    examples.push_back({{code, 64}, 1376});
    examples.push_back({{code, 16, /*compact_scales=*/true}, 5001});
    examples.push_back({{code, 64, /*compact_scales=*/true}, 20'480});
  }
  return examples;
}

/// Encodes two parts, decodes them and adds them up; one block of zeros, one
/// not finite.
KernelProblem blocks_problem(CodeType code, ElementType type) {
  return {
      .kernel = blocks_kernel_of(code, type),
      .name =
          formatted("block format: {} for {}", name_of(code), name_of(type)),
      .run = [code, type](const DeviceKernels& kernels, c10::Device device) {
        constexpr int64_t kParts = 2;
        ProblemArrays arrays(device);
        const at::ScalarType dtype = detail::dtype_of(type);
        std::vector<KernelResult> results;
        for (const auto& [format, numel] : block_examples(code)) {
          const int64_t block = format.block_numel;
          const at::Tensor values = arrays.values(kParts * numel, dtype, -1, 1);
          values.narrow(0, block, block).zero_();
          values.narrow(0, 3 * block + 1, 1).fill_(kInfinity);
          const at::Tensor wire = at::zeros(
              {kParts * format.bytes(numel)}, arrays.options(at::kByte));
          const auto run = [&, numel = numel](
                               BlockWork work, const at::Tensor& of) {
            kernels.blocks(
                {.work = work,
                 .format = format,
                 .type = type,
                 .values = of.mutable_data_ptr(),
                 .wire = wire.mutable_data_ptr<uint8_t>(),
                 .numel = numel,
                 .parts = kParts,
                 .factor = 1.0F / 3});
          };
          run(BlockWork::kEncode, values);
          const at::Tensor decoded = at::zeros_like(values);
          run(BlockWork::kDecode, decoded);
          const at::Tensor sum = at::zeros({numel}, values.options());
          if (code != CodeType::kNf4) {
            run(BlockWork::kSum, sum);
          }
          const std::string where = formatted(
              " in blocks of {}{}",
              block,
              format.compact_scales ? " with compact scales" : "");
          results.push_back(
              {.name = "codes and scales" + where, .values = wire});
          results.push_back(
              {.name = "decoded values" + where, .values = decoded});
          results.push_back({.name = "sums" + where, .values = sum});
        }
        return results;
      }};
}

struct NormExample {
  const char* name;
  int64_t samples;
  NormLayout layout;
  bool centered;
};

/// In packs, element by element, and with neighbors that share a parameter;
/// enough rows for several parts of their sums. In registers with 1 to 4 packs
/// a thread: of several rows a warp, of a warp a row, and of several warps.
constexpr std::array kNormExamples = {
    NormExample{"LayerNorm", 70, {.features = 132}, true},
    NormExample{"RMSNorm", 70, {.features = 37}, false},
    NormExample{"RMSNorm of 64", 70, {.features = 64}, false},
    NormExample{"LayerNorm of 504", 5, {.features = 504}, true},
    NormExample{"LayerNorm of 2056", 5, {.features = 2056}, true},
    NormExample{"RMSNorm of 4096", 3, {.features = 4096}, false},
    NormExample{
        "GroupNorm",
        9,
        {.features = 15, .groups = 2, .spatial = 5},
        true}};

KernelProblem norm_problem(ElementType type) {
  return {
      .kernel = norm_kernel_of(type),
      .name = "mixed_norm of " + name_of(type),
      .run = [type](const DeviceKernels& kernels, c10::Device device) {
        ProblemArrays arrays(device);
        const at::ScalarType dtype = detail::dtype_of(type);
        std::vector<KernelResult> results;
        for (const NormExample& example : kNormExamples) {
          const auto& [features, groups, spatial] = example.layout;
          const int64_t numel = example.samples * groups * features;
          const at::Tensor x = arrays.values(numel, dtype, -1, 3);
          const at::Tensor gradient = arrays.values(numel, dtype, -1, 1);
          const int64_t parameters = example.layout.parameters();
          const at::Tensor weight =
              arrays.values(parameters, at::kFloat, 0.5, 1.5);
          const at::Tensor bias = arrays.values(parameters, at::kFloat, -1, 1);
          const auto [y, mean, rstd] = kernels.norm(
              x,
              features,
              groups,
              spatial,
              weight,
              bias,
              1e-5,
              example.centered);
          const auto [gradient_x, gradient_weight, gradient_bias] =
              kernels.norm_backward(
                  gradient,
                  x,
                  features,
                  groups,
                  spatial,
                  mean,
                  rstd,
                  weight,
                  example.centered,
                  {true, true, true});
          // Float32 sums of a hundred numbers in any order.
          constexpr double kSums = 1e-5;
          // They may round to one of two neighbors.
          const double unit = type == ElementType::kFloat16 ? 0x1p-10 : 0x1p-7;
          const auto add =
              [&](const char* name, const at::Tensor& values, double relative) {
                results.push_back(
                    {formatted("{} of {}", name, example.name),
                     values,
                     relative,
                     kSums});
              };
          add("the result", y, unit);
          add("the mean", mean, 0);
          add("1 / sigma", rstd, 0);
          add("the gradient of x", gradient_x, unit);
          add("the gradient of the weight", gradient_weight, 0);
          add("the gradient of the bias", gradient_bias, 0);
        }
        return results;
      }};
}

/// In packs with a rest of rows, and element by element, unaligned.
KernelProblem bias_problem(ElementType type) {
  return {
      .kernel = bias_kernel_of(type),
      .name = "add_ of a bias of " + name_of(type),
      .run = [type](const DeviceKernels& kernels, c10::Device device) {
        ProblemArrays arrays(device);
        const at::ScalarType dtype = detail::dtype_of(type);
        std::vector<KernelResult> results;
        for (const auto& [rows, features, offset] :
             {std::array<int64_t, 3>{5, 2056, 0}, {5, 37, 1}}) {
          const at::Tensor x =
              arrays.values(rows * features, dtype, -1, 1, offset);
          const at::Tensor bias = arrays.values(features, dtype, -1, 1, offset);
          kernels.add_bias(
              {.x = x.mutable_data_ptr(),
               .bias = bias.const_data_ptr(),
               .rows = rows,
               .features = features,
               .type = type});
          results.push_back(
              {.name = formatted("rows of {}", features), .values = x});
        }
        return results;
      }};
}

/// In packs with rows that teams do not share evenly, and element by element,
/// unaligned.
KernelProblem sums_problem(ElementType type) {
  return {
      .kernel = sums_kernel_of(type),
      .name = "sum over rows of " + name_of(type),
      .run = [type](const DeviceKernels& kernels, c10::Device device) {
        ProblemArrays arrays(device);
        const at::ScalarType dtype = detail::dtype_of(type);
        std::vector<KernelResult> results;
        for (const auto& [rows, features, offset] :
             {std::array<int64_t, 3>{203, 2056, 0}, {131, 37, 1}}) {
          const at::Tensor x =
              arrays.values(rows * features, dtype, -1, 1, offset);
          const at::Tensor parts = arrays.values(
              column_sum_parts(rows, features) * features, at::kFloat, -1, 1);
          const at::Tensor sums = arrays.values(features, dtype, -1, 1);
          kernels.column_sums(
              {.x = x.const_data_ptr(),
               .parts = parts.mutable_data_ptr<float>(),
               .sums = sums.mutable_data_ptr(),
               .rows = rows,
               .features = features,
               .type = type});
          // Rounded once, of sums in another order.
          results.push_back(
              {formatted("columns of {}", features),
               sums,
               type == ElementType::kFloat32   ? 0
               : type == ElementType::kFloat16 ? 0x1p-10
                                               : 0x1p-7,
               0x1p-20});
        }
        return results;
      }};
}

/// From rows without to rows with a gap, longer than a block's: odd ones in
/// both orders of alignment, and in packs.
KernelProblem row_copy_problem() {
  return {
      .kernel = kRowCopyKernel,
      .name = "copies of rows",
      .run = [](const DeviceKernels& kernels, c10::Device device) {
        constexpr int64_t kBatches = 2;
        constexpr int64_t kRows = 3;
        constexpr int64_t kGap = 5;
        ProblemArrays arrays(device);
        std::vector<KernelResult> results;
        for (const auto& [columns, offset] :
             {std::array<int64_t, 2>{4103, 0}, {4103, 1}, {8200, 0}}) {
          const int64_t stride = round_up(columns + kGap, 8);
          const at::Tensor from = arrays.values(
              kBatches * kRows * columns, at::kBFloat16, -1, 1, offset);
          const at::Tensor into = arrays.values(
              kBatches * (kRows + 1) * stride, at::kBFloat16, -1, 1, offset);
          kernels.copy_rows(
              {.from = from.const_data_ptr(),
               .to = into.mutable_data_ptr(),
               .rows = kRows,
               .columns = columns,
               .from_stride = columns,
               .to_stride = stride,
               .batches = kBatches,
               .from_batch_stride = kRows * columns,
               .to_batch_stride = (kRows + 1) * stride});
          results.push_back(
              {.name = formatted("rows of {}, {} off", columns, offset),
               .values = into});
        }
        return results;
      }};
}

std::vector<KernelProblem> all_problems() {
  std::vector<KernelProblem> all;
  add_update_problems(all, FusedSteps{});
  for (const ElementType type : kAllTypes) {
    all.push_back(pack_problem(type));
  }
  for (const CodeType code :
       {CodeType::kInt8,
        CodeType::kInt4,
        CodeType::kFp8,
        CodeType::kSign,
        CodeType::kNf4}) {
    for (const ElementType type : kAllTypes) {
      if (type != ElementType::kFloat64) {
        all.push_back(blocks_problem(code, type));
      }
    }
  }
  all.push_back(norm_problem(ElementType::kFloat16));
  all.push_back(norm_problem(ElementType::kBFloat16));
  for (const ElementType type :
       {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBFloat16}) {
    all.push_back(bias_problem(type));
    all.push_back(sums_problem(type));
  }
  all.push_back(row_copy_problem());
  return all;
}

std::vector<KernelResult> on_host(std::vector<KernelResult> results) {
  for (KernelResult& result : results) {
    result.values = result.values.cpu().to(at::kDouble).flatten();
  }
  return results;
}

/// The largest difference of an array.
struct ArrayDifference {
  double largest = 0;
  int64_t element = 0;
  double found = 0;
  double expected = 0;
  int64_t count = 0; ///< elements that differ more than they may
};

ArrayDifference difference_of(
    const KernelResult& found,
    const KernelResult& expected) {
  const int64_t numel = expected.values.numel();
  const auto* local = found.values.const_data_ptr<double>();
  const auto* other = expected.values.const_data_ptr<double>();
  double largest = 0;
  for (int64_t i = 0; i < numel; ++i) {
    if (std::isfinite(other[i])) {
      largest = std::max(largest, std::abs(other[i]));
    }
  }
  ArrayDifference result;
  for (int64_t i = 0; i < numel; ++i) {
    if (local[i] == other[i] ||
        (std::isnan(local[i]) && std::isnan(other[i]))) {
      continue;
    }
    const double off = std::abs(local[i] - other[i]);
    const double allowed =
        expected.relative * std::abs(other[i]) + expected.of_largest * largest;
    if (off <= allowed) {
      continue;
    }
    const double comparable = std::isnan(off) ? kInfinity : off;
    if (result.count++ == 0 || comparable > result.largest) {
      result.largest = comparable;
      result.element = i;
      result.found = local[i];
      result.expected = other[i];
    }
  }
  return result;
}

} // namespace

const std::vector<KernelProblem>& kernel_problems() {
  static const auto* const kProblems =
      new std::vector<KernelProblem>(all_problems());
  return *kProblems;
}

std::optional<std::string> difference_of_results(
    std::vector<KernelResult> found,
    std::vector<KernelResult> expected) {
  found = on_host(std::move(found));
  expected = on_host(std::move(expected));
  std::optional<std::string> text;
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const ArrayDifference local = difference_of(found[i], expected[i]);
    if (local.count > 0 && (!text || local.largest > largest)) {
      largest = local.largest;
      text = formatted(
          "{} differ by up to {:.3g}, at element {} ({:.9g} instead of {:.9g}), in {} of {} elements",
          expected[i].name,
          local.largest,
          local.element,
          local.found,
          local.expected,
          local.count,
          expected[i].values.numel());
    }
  }
  return text;
}

std::optional<std::string> difference_from_operators(
    const KernelProblem& problem,
    const DeviceKernels& kernels,
    c10::Device device) {
  const detail::PlainOperators plain;
  // First to the host, so that an error of the device is that of the kernel.
  auto found = on_host(problem.run(kernels, device));
  return difference_of_results(
      std::move(found), problem.run(operator_kernels(), device));
}

} // namespace tessera::runtime
