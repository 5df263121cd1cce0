// SPDX-License-Identifier: Apache-2.0
// The product's kernels on the virtual device: those of the CPU, as commands of
// the current stream.
#include "support/vdev/vdev_kernels.h"

#include "support/vdev/vdev.h"
#include "tessera/runtime/kernels/block_quantize.h"
#include "tessera/runtime/kernels/isa.h"
#include "tessera/runtime/kernels/update_cpu.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <span>
#include <variant>
#include <vector>

namespace tessera::tests::vdev {

namespace {

using runtime::BlockArrays;
using runtime::BlockWork;
using runtime::ElementType;
using runtime::LambShard;
using runtime::LowPrecision;
using runtime::PackMode;
using runtime::PackShard;

void add(
    std::vector<Access>& accesses,
    const void* data,
    int64_t numel,
    size_t item,
    bool is_write) {
  if (data != nullptr && numel > 0) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    accesses.push_back(
        {{begin, begin + static_cast<size_t>(numel) * item}, is_write});
  }
}

void issue_kernel(
    const char* name,
    std::vector<Access> accesses,
    std::function<void()> run) {
  const auto& guard =
      *c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1);
  Runtime::instance().issue(
      guard.getStream(guard.getDevice()),
      {.name = name,
       .accesses = std::move(accesses),
       .run =
           [run = std::move(run)](bool) {
             run();
             return true;
           },
       .also_after = {}});
}

template <typename Shard>
std::vector<Access> accesses_of(
    std::span<const Shard> shards,
    bool writes_master) {
  using T = typename Shard::Master;
  const auto size_of = [](LowPrecision format) {
    return format == LowPrecision::kNone ? sizeof(T) : sizeof(uint16_t);
  };
  std::vector<Access> accesses;
  for (const Shard& shard : shards) {
    const size_t state_item = size_of(shard.state_format);
    add(accesses, shard.grad, shard.numel, size_of(shard.grad_format), false);
    add(accesses, shard.grad_factor, 1, sizeof(double), false);
    add(accesses, shard.master, shard.numel, sizeof(T), writes_master);
    for (const void* state : shard.states) {
      add(accesses, state, shard.numel, state_item, true);
    }
    if (shard.low_precision_format != LowPrecision::kNone) {
      add(accesses,
          shard.low_precision,
          shard.numel,
          sizeof(uint16_t),
          writes_master);
    }
  }
  return accesses;
}

template <typename Shard>
void update(std::span<const Shard> shards) {
  issue_kernel(
      "update_kernel",
      accesses_of(shards, /*writes_master=*/true),
      [own = std::vector<Shard>(shards.begin(), shards.end())] {
        for (Shard shard : own) {
          runtime::fold_grad_factor(shard);
          const runtime::CpuUpdate update =
              runtime::update_of(runtime::best_isa(), shard);
          update.range(0, update.numel);
        }
      });
}

template <typename T>
void update(std::span<const LambShard<T>> shards) {
  auto accesses = accesses_of(shards, /*writes_master=*/true);
  for (const LambShard<T>& shard : shards) {
    add(accesses, shard.rule.lr_factor, 1, sizeof(double), false);
  }
  issue_kernel(
      "lamb_weights_kernel",
      std::move(accesses),
      [own = std::vector<LambShard<T>>(shards.begin(), shards.end())] {
        for (LambShard<T> shard : own) {
          runtime::fold_lr_factor(shard.rule);
          runtime::lamb_weights_cpu(runtime::best_isa(), shard);
        }
      });
}

template <typename T>
void lamb_moments(std::span<const LambShard<T>> shards, double* sums) {
  auto accesses = accesses_of(shards, /*writes_master=*/false);
  constexpr int64_t kPerRun = 2 * runtime::kLambCudaBlocks;
  add(accesses,
      sums,
      kPerRun * static_cast<int64_t>(shards.size()),
      sizeof(double),
      true);
  issue_kernel(
      "lamb_moments_kernel",
      std::move(accesses),
      [own = std::vector<LambShard<T>>(shards.begin(), shards.end()), sums] {
        for (size_t i = 0; i < own.size(); ++i) {
          LambShard<T> shard = own[i];
          runtime::fold_grad_factor(shard);
          const auto sum =
              runtime::lamb_moments_cpu(runtime::best_isa(), shard);
          double* into = sums + static_cast<int64_t>(i) * kPerRun;
          into[0] += sum.weights;
          into[1] += sum.direction;
        }
      });
}

at::ScalarType dtype_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return at::kFloat;
    case ElementType::kFloat64:
      return at::kDouble;
    case ElementType::kFloat16:
      return at::kHalf;
    case ElementType::kBFloat16:
      return at::kBFloat16;
  }
  return at::kFloat;
}

at::Tensor flat(const void* data, int64_t numel, ElementType type) {
  return at::from_blob(const_cast<void*>(data), {numel}, dtype_of(type));
}

void pack(
    std::span<const PackShard> shards,
    ElementType target_type,
    double factor,
    PackMode mode) {
  std::vector<Access> accesses;
  for (const PackShard& shard : shards) {
    add(accesses,
        shard.source,
        shard.numel,
        c10::elementSize(dtype_of(shard.source_type)),
        false);
    add(accesses,
        shard.target,
        shard.numel,
        c10::elementSize(dtype_of(target_type)),
        true);
  }
  issue_kernel(
      "pack_kernel",
      std::move(accesses),
      [own = std::vector<PackShard>(shards.begin(), shards.end()),
       target_type,
       factor,
       mode] {
        for (const PackShard& shard : own) {
          const at::Tensor target =
              flat(shard.target, shard.numel, target_type);
          if (shard.source == nullptr) {
            target.zero_();
            continue;
          }
          const at::Tensor source =
              flat(shard.source, shard.numel, shard.source_type);
          if (mode == PackMode::kAdd) {
            target.add_(source, factor);
          } else if (factor == 1) {
            target.copy_(source);
          } else {
            const auto wide =
                at::promote_types(source.scalar_type(), at::kFloat);
            target.copy_(source.to(wide).mul(factor));
          }
        }
      });
}

void blocks(const BlockArrays& arrays) {
  const bool encodes = arrays.work == BlockWork::kEncode;
  const bool sums = arrays.work == BlockWork::kSum;
  std::vector<Access> accesses;
  add(accesses,
      arrays.values,
      (sums ? 1 : arrays.parts) * arrays.numel,
      c10::elementSize(dtype_of(arrays.type)),
      !encodes);
  add(accesses,
      arrays.wire,
      arrays.parts * arrays.format.bytes(arrays.numel),
      1,
      encodes);
  issue_kernel("blocks_kernel", std::move(accesses), [arrays] {
    runtime::detail::run_blocks_cpu(arrays);
  });
}

void add_bias(const runtime::BiasRows& rows) {
  const auto item = c10::elementSize(dtype_of(rows.type));
  const int64_t numel = rows.rows * rows.features;
  std::vector<Access> accesses;
  add(accesses, rows.bias, rows.features, item, false);
  add(accesses, rows.x, numel, item, true);
  issue_kernel("add_bias_kernel", std::move(accesses), [rows, numel] {
    flat(rows.x, numel, rows.type)
        .view({rows.rows, rows.features})
        .add_(flat(rows.bias, rows.features, rows.type));
  });
}

void column_sums(const runtime::ColumnSums& sums) {
  const auto item = c10::elementSize(dtype_of(sums.type));
  std::vector<Access> accesses;
  add(accesses, sums.x, sums.rows * sums.features, item, false);
  add(accesses,
      sums.parts,
      runtime::column_sum_parts(sums.rows, sums.features) * sums.features,
      sizeof(float),
      true);
  add(accesses, sums.sums, sums.features, item, true);
  issue_kernel("column_sums_kernel", std::move(accesses), [sums] {
    flat(sums.sums, sums.features, sums.type)
        .copy_(flat(sums.x, sums.rows * sums.features, sums.type)
                   .view({sums.rows, sums.features})
                   .sum({0}, /*keepdim=*/false, at::kFloat));
  });
}

void copy_rows(const runtime::RowCopy& rows) {
  constexpr int64_t kItem = 2;
  std::vector<Access> accesses;
  for (int64_t batch = 0; batch < rows.batches; ++batch) {
    for (int64_t row = 0; row < rows.rows; ++row) {
      const auto at_row =
          [&](const void* data, int64_t batch_stride, int64_t stride) {
            return static_cast<const char*>(data) +
                   (batch * batch_stride + row * stride) * kItem;
          };
      add(accesses,
          at_row(rows.from, rows.from_batch_stride, rows.from_stride),
          rows.columns,
          kItem,
          false);
      add(accesses,
          at_row(rows.to, rows.to_batch_stride, rows.to_stride),
          rows.columns,
          kItem,
          true);
    }
  }
  issue_kernel("copy_rows_kernel", std::move(accesses), [rows] {
    const auto matrices =
        [&](const void* data, int64_t batch_stride, int64_t stride) {
          return at::from_blob(
              const_cast<void*>(data),
              {rows.batches, rows.rows, rows.columns},
              {batch_stride, stride, 1},
              at::kShort);
        };
    matrices(rows.to, rows.to_batch_stride, rows.to_stride)
        .copy_(matrices(rows.from, rows.from_batch_stride, rows.from_stride));
  });
}

/// Calls the operator with these arguments.
template <typename... Arguments>
runtime::NormResults run_norm(const char* name, const Arguments&... arguments) {
  torch::jit::Stack stack;
  torch::jit::push(stack, arguments...);
  run_by_fallback(
      c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), stack);
  return {
      stack.at(0).toTensor(), stack.at(1).toTensor(), stack.at(2).toTensor()};
}

runtime::NormResults norm(
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool centered) {
  return run_norm(
      "tessera::mixed_norm",
      x,
      features,
      groups,
      spatial,
      weight,
      bias,
      eps,
      centered);
}

runtime::NormResults norm_backward(
    const at::Tensor& gradient,
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight,
    bool centered,
    std::array<bool, 3> wanted) {
  return run_norm(
      "tessera::mixed_norm_backward",
      gradient,
      x,
      features,
      groups,
      spatial,
      mean,
      rstd,
      weight,
      centered,
      wanted);
}

} // namespace

const runtime::DeviceKernels& vdev_kernels() {
  static const runtime::DeviceKernels kKernels{
      .update =
          [](const runtime::UpdateShards& shards) {
            std::visit([](auto s) { update(s); }, shards);
          },
      .lamb_moments =
          [](const runtime::LambShards& shards, double* sums) {
            std::visit([&](auto s) { lamb_moments(s, sums); }, shards);
          },
      .pack = &pack,
      .blocks = &blocks,
      .norm = &norm,
      .norm_backward = &norm_backward,
      .add_bias = &add_bias,
      .column_sums = &column_sums,
      .copy_rows = &copy_rows};
  return kKernels;
}

void install_kernels() {
  runtime::register_device_kernels(vdev_kernels());
  // Never destroyed: tensors are freed at exit.
  static auto* const kNorms = new torch::Library(
      torch::Library::IMPL,
      "tessera",
      c10::DispatchKey::PrivateUse1,
      __FILE__,
      __LINE__);
  kNorms->impl("mixed_norm", &runtime::norm_cuda);
  kNorms->impl("mixed_norm_backward", &runtime::norm_backward_cuda);
}

} // namespace tessera::tests::vdev
