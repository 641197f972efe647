// Shared blocks and the alias table (aliasing.h).
#include "devices/emulator/aliasing.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "devices/emulator/replay/action_log.h"

namespace npu::emulator {

namespace {

// The uses of a call's operands, which depend on its integers: those of the last call on this
// thread, whose integers most calls repeat.
const kernels::OperandUses& uses_of(const kernels::Declaration& kernel,
                                    std::span<const KernelArgument> arguments) {
  struct Last {
    const kernels::Declaration* kernel = nullptr;
    std::array<int64_t, kernels::kMaxOperands> integers;
    uint32_t buffers = 0;  // a bit per operand
    kernels::OperandUses uses;
  };
  thread_local Last last;
  uint32_t buffers = 0;
  bool same = last.kernel == &kernel;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].data != nullptr) {
      buffers |= 1u << i;
    } else {
      same &= last.integers[i] == arguments[i].value;
    }
  }
  if (same && buffers == last.buffers) return last.uses;
  for (size_t i = 0; i < arguments.size(); ++i) last.integers[i] = arguments[i].value;
  last.kernel = &kernel;
  last.buffers = buffers;
  last.uses = kernels::operand_uses(kernel, arguments);
  return last.uses;
}

}  // namespace

// A free block, which leaves the list, or a new one.
SharedBlock* BlockPool::find(size_t bytes) {
  const auto fits = [&](const SharedBlock* block) {
    return sizes_ == Sizes::kGrow || block->data.size() == bytes;
  };
  const auto found = std::find_if(free_.rbegin(), free_.rend(), fits);
  if (found != free_.rend()) {
    SharedBlock* block = *found;
    free_.erase(std::next(found).base());
    return block;
  }
  all_.push_back(std::make_unique<SharedBlock>());
  all_.back()->pool = this;
  return all_.back().get();
}

SharedBlock* BlockPool::take(size_t bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  SharedBlock* block = find(bytes);
  if (block->data.size() < bytes) block->data.resize(bytes);
  block->packed.clear();
  if (ActionLog* log = ActionLog::current()) log->block_taken(block);
  return block;
}

void BlockPool::give_back(SharedBlock* block) {
  const std::lock_guard<std::mutex> guard(mutex_);
  (sizes_ == Sizes::kGrow ? free_ : returned_).push_back(block);
}

void BlockPool::reuse() {
  const std::lock_guard<std::mutex> guard(mutex_);
  free_.insert(free_.end(), returned_.begin(), returned_.end());
  returned_.clear();
}

size_t BlockPool::bytes() const {
  size_t sum = 0;
  for (const auto& block : all_)
    sum += sizeof(SharedBlock) + block->data.size() + block->packed.bytes.size();
  return sum;
}

void AliasTable::index() {
  uint64_t next = 0;
  for (uint32_t i = 0; i < aliases_.size(); ++i) {
    const uint64_t last = page(aliases_[i].end() - 1);
    while (next <= last) first_behind_page_[next++] = i;
  }
  std::fill(first_behind_page_.begin() + static_cast<std::ptrdiff_t>(next),
            first_behind_page_.end(), static_cast<uint32_t>(aliases_.size()));
  if (aliases_.empty()) aliased_pages_ = 0;
}

size_t AliasTable::first_from(size_t first, uint64_t end) const {
  while (first < aliases_.size() && aliases_[first].address < end) ++first;
  return first;
}

void AliasTable::write_back(const Alias& alias) {
  if (ActionLog* log = ActionLog::current()) {
    log->copy(memory_.data() + alias.address, alias.source.data(), alias.bytes);
  }
  std::memcpy(memory_.data() + alias.address, alias.source.data(), alias.bytes);
}

void AliasTable::flush_numbers(size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) write_back(aliases_[i]);
  const auto begin = aliases_.begin();
  aliases_.erase(begin + static_cast<std::ptrdiff_t>(first),
                 begin + static_cast<std::ptrdiff_t>(last));
  index();
}

// An alias of an argument across `address` becomes two, if both are worth it; any other ends.
void AliasTable::divide(uint64_t address) {
  const size_t i = first_behind(address);
  if (i == aliases_.size() || aliases_[i].address >= address) return;
  Alias& alias = aliases_[i];
  const uint64_t head = address - alias.address, tail = alias.end() - address;
  if (alias.source.block || std::min(head, tail) < kMinBytes) return flush_numbers(i, i + 1);
  alias.bytes = head;
  Alias rest{address, tail, {alias.source.argument + head, {}}};
  aliases_.insert(aliases_.begin() + static_cast<std::ptrdiff_t>(i) + 1, std::move(rest));
  index();
}

void AliasTable::add(uint64_t address, uint64_t bytes, AliasSource source) {
  size_t first = first_behind(address);
  if (first < aliases_.size() && aliases_[first].address == address &&
      aliases_[first].bytes == bytes) {
    aliases_[first].source = std::move(source);
    return;
  }
  divide(address);
  divide(address + bytes);
  first = first_behind(address);
  const size_t last = first_from(first, address + bytes);
  const auto at = aliases_.begin() + static_cast<std::ptrdiff_t>(first);
  const auto next = aliases_.erase(at, at + static_cast<std::ptrdiff_t>(last - first));
  aliases_.insert(next, {address, bytes, std::move(source)});
  aliased_pages_ |= pages(address, bytes);
  index();
}

std::byte* AliasTable::in_argument(uint64_t address, uint64_t bytes) const {
  size_t i = first_behind(address);
  if (i == aliases_.size() || aliases_[i].address > address) return nullptr;
  if (aliases_[i].source.argument == nullptr) return nullptr;
  std::byte* const data = aliases_[i].source.argument + (address - aliases_[i].address);
  for (uint64_t held = aliases_[i].end() - address; held < bytes; held += aliases_[i].bytes) {
    if (++i == aliases_.size() || aliases_[i].address != address + held ||
        aliases_[i].source.argument != data + held) {
      return nullptr;
    }
  }
  return data;
}

std::byte* AliasTable::in_block(uint64_t address, uint64_t bytes, BlockRef* block,
                                bool* whole) const {
  const size_t i = first_behind(address);
  if (i == aliases_.size() || aliases_[i].address > address) return nullptr;
  const Alias& alias = aliases_[i];
  if (alias.source.argument != nullptr || alias.end() - address < bytes) return nullptr;
  *block = alias.source.block;
  *whole = alias.bytes == bytes;
  return alias.source.data() + (address - alias.address);
}

bool AliasTable::flush_overlapping(uint64_t address, uint64_t bytes) {
  const size_t first = first_behind(address);
  const size_t last = first_from(first, end_of(address, bytes));
  if (first == last) return false;
  flush_numbers(first, last);
  return true;
}

void AliasTable::flush_arguments() {
  std::erase_if(aliases_, [&](const Alias& alias) {
    if (alias.source.argument == nullptr) return false;
    write_back(alias);
    return true;
  });
  index();
}

void AliasTable::clear() {
  aliases_.clear();
  index();
  redirections_.clear();
  pinned_.clear();
}

// A packed form is that of a whole alias.
AliasTable::Redirection AliasTable::find(uint64_t address, uint64_t bytes) const {
  const size_t i = first_behind(address);
  if (i == aliases_.size() || aliases_[i].address > address) return {};
  const Alias& alias = aliases_[i];
  if (alias.address == address && alias.bytes >= bytes) {
    return {0, alias.source.data(), alias.bytes, &alias};
  }
  return {0, in_argument(address, bytes), bytes, nullptr};
}

// Whether a flush for one operand may have removed the alias of another.
bool AliasTable::find_redirections(std::span<const KernelArgument> arguments,
                                   const kernels::OperandUses& uses) {
  bool flushed = false;
  redirections_.clear();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].data == nullptr) continue;
    const kernels::OperandUse use = uses[i];
    const auto address = static_cast<uint64_t>(arguments[i].data - memory_.data());
    if (!may_overlap(address, use.bytes)) continue;
    Redirection found = use.read_only ? find(address, use.bytes) : Redirection{};
    if (found.data == nullptr) {
      flushed |= flush(address, use.bytes);
    } else {
      found.operand = i;
      redirections_.push_back(found);
    }
  }
  return flushed;
}

void AliasTable::redirect(std::span<KernelArgument> arguments, const kernels::Declaration* kernel) {
  redirections_.clear();
  if (aliases_.empty()) return;
  if (kernel == nullptr || arguments.size() != static_cast<size_t>(kernel->count)) {
    return flush_all();
  }
  const kernels::OperandUses& uses = uses_of(*kernel, arguments);
  while (find_redirections(arguments, uses)) {
  }
  for (const Redirection& redirection : redirections_) {
    KernelArgument& argument = arguments[redirection.operand];
    argument.data = redirection.data;
    argument.bytes = static_cast<uint32_t>(redirection.bytes);
    if (redirection.alias != nullptr && redirection.alias->source.block) {
      argument.packed = &redirection.alias->source.block->packed;
    }
  }
}

void AliasTable::pin() {
  pinned_.clear();
  for (const Redirection& redirection : redirections_) {
    if (redirection.alias != nullptr) pinned_.push_back(redirection.alias->source.block);
  }
}

}  // namespace npu::emulator
