// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/row_exchange.h"

#include "tessera/sharding/collectives/check_length.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

namespace tessera::sharding {

namespace {

/// The stream of `device` for communication of activations.
const runtime::StreamLane& lane_of(c10::Device device) {
  static std::mutex mutex;
  static std::
      map<std::pair<c10::DeviceType, c10::DeviceIndex>, runtime::StreamLane>
          lanes;
  const std::lock_guard lock(mutex);
  return lanes.try_emplace({device.type(), device.index()}, device)
      .first->second;
}

/// Sizes without features, the sequence dimension first.
std::vector<int64_t> sequence_first(const at::Tensor& x, int64_t dim) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.pop_back();
  std::rotate(sizes.begin(), sizes.begin() + dim, sizes.begin() + dim + 1);
  return sizes;
}

int64_t sequence_dim(const at::Tensor& x, const TensorParallel& tp) {
  return tp.sequence ? at::maybe_wrap_dim(tp.sequence_dim, x.dim()) : 0;
}

} // namespace

RowExchange::RowExchange(const at::Tensor& between, const TensorParallel& tp)
    : RowExchange(
          tp,
          sequence_first(between, sequence_dim(between, tp)),
          sequence_dim(between, tp)) {}

RowExchange RowExchange::of_full(
    const at::Tensor& full,
    const TensorParallel& tp,
    const char* function) {
  const int64_t dim = sequence_dim(full, tp);
  std::vector<int64_t> sizes = sequence_first(full, dim);
  if (tp.sequence) {
    check_divides(full, dim, function, *tp.group);
    sizes[0] /= tp.group->size();
  }
  return {tp, std::move(sizes), dim};
}

RowExchange::RowExchange(
    const TensorParallel& tp,
    std::vector<int64_t> part_sizes,
    int64_t dim)
    : group_(tp.group),
      chunk_count_(tp.pieces),
      is_divided_(tp.sequence),
      dim_(dim),
      part_sizes_(std::move(part_sizes)),
      rows_(std::accumulate(
          part_sizes_.begin(),
          part_sizes_.end(),
          int64_t{1},
          std::multiplies<>())),
      parts_(is_divided_ ? group_->size() : 1) {}

at::Tensor RowExchange::rows_of_part(const at::Tensor& between) const {
  return between.movedim(dim_, 0)
      .reshape({rows_, between.size(-1)})
      .contiguous();
}

at::Tensor RowExchange::rows_of_full(const at::Tensor& full) const {
  return full.movedim(dim_, 0)
      .reshape({full_rows(), full.size(-1)})
      .contiguous();
}

at::Tensor RowExchange::shaped(const at::Tensor& matrix, int64_t parts) const {
  std::vector<int64_t> sizes = part_sizes_;
  sizes[0] *= parts;
  sizes.push_back(matrix.size(1));
  return matrix.view(sizes).movedim(0, dim_);
}

at::Tensor RowExchange::part_shaped(const at::Tensor& matrix) const {
  // Otherwise norms would copy it, and keep their copy.
  return shaped(matrix, 1).contiguous();
}

at::Tensor RowExchange::full_shaped(const at::Tensor& matrix) const {
  return shaped(matrix, parts_);
}

std::vector<Rows> RowExchange::chunks() const {
  const int64_t count =
      std::max<int64_t>(1, std::min<int64_t>(chunk_count_, rows_));
  std::vector<Rows> chunks;
  for (int64_t i = 0; i < count; ++i) {
    chunks.push_back({i * rows_ / count, (i + 1) * rows_ / count});
  }
  return chunks;
}

std::string RowExchange::label(const char* step) const {
  return std::string(step) + " in the group '" + group_->name() + "'";
}

at::Tensor RowExchange::Gathered::wait() {
  collective_.wait();
  return std::move(full_);
}

RowExchange::Gathered RowExchange::gather(const at::Tensor& local) const {
  Gathered gathered;
  if (!is_divided_) {
    gathered.full_ = local;
    return gathered;
  }
  gathered.full_ = at::empty({full_rows(), local.size(1)}, local.options());
  gathered.collective_ = runtime::LaneCollective(
      [&] {
        return group_->all_gather(
            gathered.full_, local, label("gather of activations"));
      },
      local,
      lane_of(local.device()));
  return gathered;
}

void RowExchange::gather_chunks(
    const at::Tensor& local,
    const std::function<void(const Rows&, const at::Tensor&)>& use) const {
  if (!is_divided_) {
    use({0, rows_}, local);
    return;
  }
  struct Travelling {
    at::Tensor buffer; ///< [parts, rows of a piece, features]
    runtime::LaneCollective collective;
  };
  const std::vector<Rows> all = chunks();
  // Double buffering: one is used while the other one is filled.
  Travelling buffers[2];
  const auto start = [&](size_t i) {
    Travelling& one = buffers[i % 2];
    const at::Tensor part = all[i].of(local);
    const int64_t count = parts_ * part.numel();
    if (!one.buffer.defined() || one.buffer.numel() < count) {
      one.buffer = at::empty({count}, local.options());
    }
    const at::Tensor target = one.buffer.flatten().narrow(0, 0, count);
    one.buffer = target.view({parts_, part.size(0), part.size(1)});
    one.collective = runtime::LaneCollective(
        [&] {
          return group_->all_gather(
              target, part, label("gather of activations"));
        },
        part,
        lane_of(local.device()));
  };
  start(0);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i + 1 < all.size()) {
      start(i + 1);
    }
    Travelling& one = buffers[i % 2];
    one.collective.wait();
    if (all.size() == 1) {
      use({0, full_rows()}, one.buffer.flatten(0, 1));
      return;
    }
    for (int64_t part = 0; part < parts_; ++part) {
      const int64_t first = part * rows_;
      use({first + all[i].begin, first + all[i].end}, one.buffer[part]);
    }
  }
}

at::Tensor RowExchange::Reduced::wait() {
  for (runtime::LaneCollective& one : collectives_) {
    one.wait();
  }
  return std::move(local_);
}

RowExchange::Reduced RowExchange::reduce_chunks(
    int64_t features,
    const at::Tensor& like,
    const std::function<void(const Rows&, at::Tensor&)>& make) const {
  Reduced reduced;
  reduced.local_ = at::empty({rows_, features}, like.options());
  const at::Tensor buffer =
      is_divided_ ? at::empty({full_rows(), features}, like.options())
                  : reduced.local_;
  const std::vector<Rows> all = chunks();
  for (const Rows& chunk : all) {
    const int64_t length = chunk.end - chunk.begin;
    const at::Tensor sent =
        buffer.narrow(0, parts_ * chunk.begin, parts_ * length);
    if (all.size() == 1) {
      at::Tensor target = sent;
      make({0, full_rows()}, target);
    } else {
      for (int64_t part = 0; part < parts_; ++part) {
        const int64_t first = part * rows_;
        at::Tensor target = sent.narrow(0, part * length, length);
        make({first + chunk.begin, first + chunk.end}, target);
      }
    }
    reduced.collectives_.emplace_back(
        [&] {
          return is_divided_ ? group_->reduce_scatter_sum(
                                   chunk.of(reduced.local_),
                                   sent,
                                   label("reduce-scatter of activations"))
                             : group_->all_reduce_sum(
                                   sent, label("sum of activations"));
        },
        sent,
        lane_of(like.device()));
  }
  return reduced;
}

} // namespace tessera::sharding
