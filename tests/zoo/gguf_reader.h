// SPDX-License-Identifier: Apache-2.0
#pragma once
// A reader of GGUF files of its own, from the format's description: what the
// writer's tests hold it against.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/zoo/gguf/gguf_writer.h"

#include <c10/util/Half.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tessera::zoo {

class GgufReader {
 public:
  struct Tensor {
    std::vector<int64_t> shape; ///< as LibTorch's
    uint32_t type = 0;
    uint64_t offset = 0; ///< from the start of the file
  };

  explicit GgufReader(const std::filesystem::path& path)
      : content_(runtime::read_text_file(path)) {
    TESSERA_CHECK(take(4) == "GGUF", "no magic number");
    TESSERA_CHECK(number<uint32_t>() == 3, "another version");
    const auto tensors = number<uint64_t>();
    const auto entries = number<uint64_t>();
    for (uint64_t i = 0; i < entries; ++i) {
      const std::string key = text();
      metadata_[key] = value(number<uint32_t>());
    }
    std::vector<std::string> names;
    for (uint64_t i = 0; i < tensors; ++i) {
      names.push_back(text());
      Tensor& tensor = tensors_[names.back()];
      tensor.shape.resize(number<uint32_t>());
      for (size_t d = tensor.shape.size(); d-- > 0;) {
        tensor.shape[d] = static_cast<int64_t>(number<uint64_t>());
      }
      tensor.type = number<uint32_t>();
      tensor.offset = number<uint64_t>();
    }
    const uint64_t begin = (at_ + 31) / 32 * 32;
    for (auto& [name, tensor] : tensors_) {
      TESSERA_CHECK(tensor.offset % 32 == 0, "{} is not aligned", name);
      tensor.offset += begin;
    }
  }

  const nlohmann::json& metadata() const {
    return metadata_;
  }
  const std::map<std::string, Tensor>& tensors() const {
    return tensors_;
  }

  /// float32
  torch::Tensor read(const std::string& name) const {
    const Tensor& tensor = tensors_.at(name);
    torch::Tensor values = torch::empty(tensor.shape, torch::kFloat);
    auto* to = values.data_ptr<float>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      to[i] = element(tensor, i);
    }
    return values;
  }

  /// Of the block of a Q8_0 tensor that holds an element: half of what lies
  /// between two numbers that it can have.
  torch::Tensor half_steps(const std::string& name) const {
    const Tensor& tensor = tensors_.at(name);
    torch::Tensor values = torch::empty(tensor.shape, torch::kFloat);
    auto* to = values.data_ptr<float>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      to[i] = scale(tensor, i / kQ8BlockNumel) / 2;
    }
    return values;
  }

 private:
  std::string take(size_t bytes) {
    TESSERA_CHECK(at_ + bytes <= content_.size(), "the file ends early");
    at_ += bytes;
    return content_.substr(at_ - bytes, bytes);
  }

  template <typename Number>
  Number number_at(uint64_t offset) const {
    Number number;
    TESSERA_CHECK(offset + sizeof(number) <= content_.size(), "too short");
    std::memcpy(&number, content_.data() + offset, sizeof(number));
    return number;
  }

  template <typename Number>
  Number number() {
    const auto found = number_at<Number>(at_);
    at_ += sizeof(Number);
    return found;
  }

  std::string text() {
    return take(number<uint64_t>());
  }

  nlohmann::json value(uint32_t type) {
    switch (type) {
      case 4:
        return number<uint32_t>();
      case 5:
        return number<int32_t>();
      case 6:
        return number<float>();
      case 7:
        return number<uint8_t>() != 0;
      case 8:
        return text();
      case 9: {
        const auto element_type = number<uint32_t>();
        const auto count = number<uint64_t>();
        nlohmann::json list = nlohmann::json::array();
        for (uint64_t i = 0; i < count; ++i) {
          list.push_back(value(element_type));
        }
        return list;
      }
      default:
        TESSERA_FAIL("a value of type {}", type);
    }
  }

  float scale(const Tensor& tensor, int64_t block) const {
    return number_at<c10::Half>(
        tensor.offset + static_cast<uint64_t>(block) * 34);
  }

  float element(const Tensor& tensor, int64_t i) const {
    const auto at = static_cast<uint64_t>(i);
    switch (tensor.type) {
      case 0:
        return number_at<float>(tensor.offset + at * 4);
      case 1:
        return number_at<c10::Half>(tensor.offset + at * 2);
      case 8:
        return scale(tensor, i / 32) *
               static_cast<float>(number_at<int8_t>(
                   tensor.offset + at / 32 * 34 + 2 + at % 32));
      default:
        TESSERA_FAIL("a tensor of type {}", tensor.type);
    }
  }

  std::string content_;
  uint64_t at_ = 0;
  nlohmann::json metadata_;
  std::map<std::string, Tensor> tensors_;
};

} // namespace tessera::zoo
