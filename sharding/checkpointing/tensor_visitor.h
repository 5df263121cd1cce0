// SPDX-License-Identifier: Apache-2.0
#pragma once
// `visit_tensors()` visits all tensors in an argument or a result of a forward,
// whatever its type.

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

namespace detail {

template <typename T>
struct IsList : std::false_type {};
template <typename T>
struct IsList<std::vector<T>> : std::true_type {};
template <typename T, size_t N>
struct IsList<std::array<T, N>> : std::true_type {};

template <typename T>
struct IsTuple : std::false_type {};
template <typename... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};
template <typename A, typename B>
struct IsTuple<std::pair<A, B>> : std::true_type {};

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <typename T>
inline constexpr bool kHoldsNoTensor =
    std::is_arithmetic_v<T> || std::is_enum_v<T> ||
    std::is_same_v<T, std::string> || std::is_same_v<T, c10::Scalar> ||
    std::is_same_v<T, std::nullopt_t> || std::is_same_v<T, std::monostate> ||
    std::is_same_v<T, c10::ScalarType> || std::is_same_v<T, c10::Device>;

template <typename T>
inline constexpr bool kUnknownType = false;

} // namespace detail

/// Calls visit(at::Tensor&) for every tensor in `value`, including undefined
/// ones, in an order that depends only on its structure. Supports tensors,
/// numbers, enums and strings, and optionals, vectors, arrays, tuples and pairs
/// of supported types. For a struct of your own, define, in its namespace,
/// `template <typename F> void visit_tensors_of(Mine& mine, F&& visit)`, which
/// calls `visit` on each member that may hold a tensor.
template <typename T, typename Visitor>
void visit_tensors(T& value, const Visitor& visit) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    visit(value);
  } else if constexpr (detail::kHoldsNoTensor<T>) {
    return;
  } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
    return;
  } else if constexpr (detail::IsOptional<T>::value) {
    if (value) {
      visit_tensors(*value, visit);
    }
  } else if constexpr (detail::IsList<T>::value) {
    for (auto& item : value) {
      visit_tensors(item, visit);
    }
  } else if constexpr (detail::IsTuple<T>::value) {
    std::apply(
        [&](auto&... items) { (visit_tensors(items, visit), ...); }, value);
  } else if constexpr (requires { visit_tensors_of(value, visit); }) {
    visit_tensors_of(
        value, [&](auto& member) { visit_tensors(member, visit); });
  } else {
    static_assert(
        detail::kUnknownType<T>,
        "A checkpointed forward takes or returns this type, and it is not "
        "known which tensors are in it. Write visit_tensors_of() for it "
        "(tessera/sharding/checkpointing/tensor_visitor.h). Pointers and "
        "views such as TensorList cannot be kept until backward: pass "
        "vectors.");
  }
}

} // namespace tessera
