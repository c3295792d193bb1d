// The native hook: sees every operator of torch.distributed and writes one row each into a ring.
//
// Plain C functions, called through ctypes: needs neither Python's headers nor libtorch_python, so that one library
// serves every Python. It is bound to the C++ interface of one torch version; native_library.py keeps them apart.
//
// Nothing here may throw into a collective, block it, or take Python's lock.

#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#ifndef C10D_BACKEND_HAS_HOOKS
#error "this torch has no collective hooks (C10D_BACKEND_HAS_HOOKS): the hook in Python serves it"
#endif

namespace {

constexpr int64_t kOpen = 0;         // of `ended`: not ended yet
constexpr int64_t kUnseen = -1;      // of `ended`: nobody will tell us when it ends
constexpr int64_t kHookId = 0x1226;  // hooks of one group fire in the order of their ids
constexpr int64_t kAnchorNs = 1'000'000'000;  // a device's clock is compared with ours so often
// As the constants of the same names in device_events.py, which says why.
constexpr int64_t kAnchorWaitNs = 5'000'000, kAnchorAgainNs = 200'000'000;
constexpr int64_t kAnchorLateNs = 5'000'000'000, kAnchorPatienceNs = 2'000'000'000, kAnchorPauseNs = 100'000;

// As ring.ROW in ring.py. Times are of CLOCK_MONOTONIC.
struct Row {
  std::atomic<uint64_t> id;  // ordinal + 1; 0 while the row is written
  int64_t issued, started, ended, size, iteration;
  uint32_t sequence;
  int32_t peer;
  uint16_t group;
  uint8_t op, reserved[5];
};
static_assert(sizeof(Row) == 64);

struct Group {
  uint16_t number;
  c10::DeviceType device;
  std::atomic<uint32_t> collectives{0};
  std::array<std::atomic<bool>, 11> has_no_future{};  // by operator: asking costs an exception, once is enough
  std::mutex mutex;  // of the two below
  std::unordered_map<int64_t, uint32_t> sent, received;
};

// What the hook before an operator leaves for the one after it; both run in the thread that issues it.
struct Issued {
  int64_t ordinal = -1, op_id = -1;
  int op = -1;
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  bool is_watched = false;  // torch itself will say when it ends
  std::optional<c10::Event> start;
};

struct OnDevice {
  int64_t ordinal;
  c10::Event start, end;  // with timing
};

struct Ring {
  std::vector<Row> rows;
  std::vector<uint8_t> taken;
  std::atomic<uint64_t> head{0};
  uint64_t tail = 0, dropped = 0;  // of the one who takes
};

Ring ring;
std::atomic<bool> is_enabled{false};
std::atomic<int64_t> iteration{INT64_MIN};
std::atomic<uint64_t> errors{0};
std::mutex error_mutex, device_mutex;
std::string first_error;
std::deque<OnDevice> on_device;  // under device_mutex
std::list<OnDevice> awaited;       // of the one who takes
std::optional<c10::Event> anchor;
int64_t anchor_ns = 0, anchor_due_ns = 0, anchor_late_ns = 0;  // late: 0 while no try has failed
thread_local Issued issued;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void note_error(const char* text) noexcept {
  if (errors++ == 0) {
    std::lock_guard<std::mutex> lock(error_mutex);
    first_error = std::string(text, std::strcspn(text, "\n"));  // torch adds where it was thrown
  }
}

template <class F>
void guarded(F&& f) noexcept {
  try {
    f();
  } catch (const std::exception& error) {
    note_error(error.what());
  } catch (...) {
    note_error("an exception of unknown type");
  }
}

// Index into irregulars.messages.records.OPERATORS, or -1 for what is no communication operator.
int operator_code(c10d::HookOpName name) {
  using N = c10d::HookOpName;
  switch (name) {
    case N::ALLREDUCE: case N::ALLREDUCE_COALESCED: return 0;
    case N::REDUCE_SCATTER: case N::REDUCE_SCATTER_BASE: case N::REDUCE_SCATTER_TENSOR_COALESCED: return 1;
    case N::ALLGATHER: case N::ALLGATHER_BASE: case N::ALLGATHER_COALESCED:
    case N::ALLGATHER_INTO_TENSOR_COALESCED: return 2;
    case N::ALLTOALL: case N::ALLTOALL_BASE: return 3;
    case N::BROADCAST: return 4;
    case N::REDUCE: return 5;
    case N::GATHER: return 6;
    case N::SCATTER: return 7;
    case N::BARRIER: return 8;
    case N::SEND: return 9;
    case N::RECV: return 10;
    default: return -1;
  }
}

bool is_p2p(int op) { return op >= 9; }

int64_t bytes_of(const c10d::PreHookArgs& args) {
  int64_t bytes = 0;
  for (const auto& tensor : args.input_tensors.empty() ? args.output_tensors : args.input_tensors)
    bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

uint32_t next_sequence(Group& group, int op, int64_t peer) {
  if (!is_p2p(op)) return ++group.collectives;
  std::lock_guard<std::mutex> lock(group.mutex);
  return ++(op == 9 ? group.sent : group.received)[peer];
}

void finish(int64_t ordinal, int64_t ended, int64_t started = 0) {
  Row& row = ring.rows[ordinal % ring.rows.size()];
  if (row.id.load(std::memory_order_acquire) != static_cast<uint64_t>(ordinal) + 1) return;  // overwritten since
  if (started) row.started = started;
  __atomic_store_n(&row.ended, ended, __ATOMIC_RELEASE);
}

int64_t add_row(const c10d::PreHookArgs& args, Group& group, int op, int64_t time) {
  const uint64_t ordinal = ring.head++;
  Row& row = ring.rows[ordinal % ring.rows.size()];
  row.id.store(0, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_release);
  row.issued = time;
  row.started = 0;
  row.ended = kOpen;
  row.size = bytes_of(args);
  row.iteration = iteration.load(std::memory_order_relaxed);
  row.sequence = next_sequence(group, op, args.root);
  row.peer = is_p2p(op) ? static_cast<int32_t>(args.root) : -1;
  row.group = group.number;
  row.op = static_cast<uint8_t>(op);
  row.id.store(ordinal + 1, std::memory_order_release);
  return static_cast<int64_t>(ordinal);
}

// gloo tells nobody when a send or recv ends, except torch's profiler; we listen there, for this one operator only.
struct Watched : at::ObserverContext {
  int64_t ordinal = -1;
};

std::unique_ptr<at::ObserverContext> on_profiled_start(const at::RecordFunction&) {
  if (issued.ordinal < 0 || issued.is_watched) return nullptr;
  issued.is_watched = true;
  auto watched = std::make_unique<Watched>();
  watched->ordinal = issued.ordinal;
  return watched;
}

void on_profiled_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context != nullptr) finish(static_cast<Watched*>(context)->ordinal, now_ns());
}

void stop_listening() {
  if (issued.handle != at::INVALID_CALLBACK_HANDLE) at::removeCallback(issued.handle);
  issued.handle = at::INVALID_CALLBACK_HANDLE;
}

c10::Device device_of(const c10d::PreHookArgs& args, const Group& group) {
  if (group.device == c10::DeviceType::CPU) return c10::Device(c10::DeviceType::CPU);  // gloo, tensors wherever
  for (const auto* tensors : {&args.input_tensors, &args.output_tensors})
    if (!tensors->empty()) return tensors->front().device();
  return c10::impl::VirtualGuardImpl(group.device).getDevice();
}

// On a device an operator begins when the issuing stream has come so far: an event there says when.
// False: the stream is being captured into a graph, where nothing may be asked.
bool record_start(c10::Device device) {
  c10::impl::VirtualGuardImpl guard(device.type());
  const auto stream = guard.getStream(device);
  if (guard.isStreamCapturing(stream)) return false;
  issued.start.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  issued.start->record(stream);
  return true;
}

void before(const c10d::PreHookArgs& args, Group& group) {
  const int64_t time = now_ns();
  if (issued.ordinal >= 0) {  // the operator before it failed while it was issued
    stop_listening();
    finish(issued.ordinal, kUnseen);
  }
  issued.ordinal = -1;
  issued.is_watched = false;
  issued.start.reset();
  const int op = operator_code(args.name);
  if (op < 0 || !is_enabled.load(std::memory_order_relaxed)) return;
  const auto device = device_of(args, group);
  if (!device.is_cpu() && !record_start(device)) return;
  issued.op_id = args.op_id;
  issued.op = op;
  issued.ordinal = add_row(args, group, op, time);
  if (device.is_cpu() && is_p2p(op))
    issued.handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(on_profiled_start, on_profiled_end).scopes({at::RecordScope::USER_SCOPE}));
}

void keep_until_done(int64_t ordinal, c10::Event start, c10::Stream stream) {
  c10::Event end(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
  end.record(stream);
  std::lock_guard<std::mutex> lock(device_mutex);
  // While nobody takes, as long as an exporter waits for its broker: the rows of older ones are overwritten.
  while (on_device.size() >= ring.rows.size()) on_device.pop_front();
  on_device.push_back(OnDevice{ordinal, std::move(start), std::move(end)});
}

// The future of an operator on a device is complete at once, and runs its callback on a stream that waits for it.
void watch_device(const c10d::PostHookArgs& args, int64_t ordinal) {
  const auto type = issued.start->device_type();
  const c10::Device device(type, issued.start->device_index());
  auto start = std::make_shared<c10::Event>(std::move(*issued.start));
  const auto on_end = [ordinal, device, start]() {
    guarded([&] {
      keep_until_done(ordinal, std::move(*start), c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    });
  };
  auto future = args.work ? args.work->getFuture() : nullptr;
  if (future)
    future->addCallback([on_end](c10::ivalue::Future&) { on_end(); });
  else
    on_end();  // a synchronous operator runs on the issuing stream itself
}

// gloo's reduce_scatter, for one, has no future.
c10::intrusive_ptr<c10::ivalue::Future> future_of(const c10d::PostHookArgs& args, Group& group, int op) {
  if (group.has_no_future[op].load(std::memory_order_relaxed)) return nullptr;
  try {
    return args.work->getFuture();
  } catch (...) {
    group.has_no_future[op] = true;
    return nullptr;
  }
}

void watch_thread(const c10d::PostHookArgs& args, Group& group, int64_t ordinal, int op) {
  auto future = args.work ? future_of(args, group, op) : nullptr;
  if (future) {
    // One that failed, because a rank is gone or time is out, never ended.
    future->addCallback([ordinal](c10::ivalue::Future& done) {
      if (!done.hasError()) finish(ordinal, now_ns());
    });
  } else if (args.work && args.async_op) {
    finish(ordinal, kUnseen);
  } else {
    try {
      if (args.work) args.work->wait();  // as the caller does next
    } catch (...) {
      return;  // the caller will see it; what failed never ended
    }
    finish(ordinal, now_ns());
  }
}

void after(const c10d::PostHookArgs& args, Group& group) {
  const int64_t ordinal = issued.ordinal;
  issued.ordinal = -1;
  if (ordinal < 0 || issued.op_id != args.op_id) return;
  stop_listening();
  if (issued.is_watched) return;
  bool is_seen = false;
  guarded([&] {
    if (issued.start)
      watch_device(args, ordinal);
    else
      watch_thread(args, group, ordinal, issued.op);
    is_seen = true;
  });
  if (!is_seen) finish(ordinal, kUnseen);
}

// False: there is no anchor yet. Where a device does not pass one in time, the one before stays: its stream may be one
// on which an operator hangs, since torch gives streams out in turn, to NCCL too.
bool move_anchor(const c10::Event& sample) {
  const int64_t began = now_ns();
  if (began < anchor_due_ns) return anchor.has_value();
  anchor_due_ns = began + kAnchorNs;
  if (anchor_late_ns == 0) anchor_late_ns = began + kAnchorLateNs;
  const bool is_late = began >= anchor_late_ns;
  const int64_t deadline = began + (is_late ? kAnchorPatienceNs : kAnchorWaitNs);
  c10::impl::VirtualGuardImpl guard(sample.device_type());
  const c10::Device device(sample.device_type(), sample.device_index());
  const auto stream = guard.getStreamFromGlobalPool(device);
  c10::Event fresh(sample.device_type(), c10::EventFlag::BACKEND_DEFAULT);
  fresh.record(stream);
  while (!fresh.query()) {
    if (now_ns() > deadline) {
      anchor_due_ns = now_ns() + (is_late ? kAnchorNs : kAnchorAgainNs);
      return anchor.has_value();
    }
    if (is_late)
      std::this_thread::sleep_for(std::chrono::nanoseconds(kAnchorPauseNs));
    else
      std::this_thread::yield();
  }
  anchor_ns = now_ns();
  anchor_late_ns = 0;
  anchor.emplace(std::move(fresh));
  return true;
}

int64_t since_anchor_ns(const c10::Event& event) {
  return anchor_ns + static_cast<int64_t>(anchor->elapsedTime(event) * 1e6);  // milliseconds
}

// Whether it needs no further look: it has ended, or can't be asked.
bool settle(OnDevice& one) {
  bool is_settled = true;
  int64_t started = 0, ended = kUnseen;
  guarded([&] {
    is_settled = one.end.query();
    if (!is_settled) return;
    is_settled = move_anchor(one.end);
    if (!is_settled) return;
    started = since_anchor_ns(one.start);
    ended = since_anchor_ns(one.end);
  });
  if (is_settled) finish(one.ordinal, ended, started);
  return is_settled;
}

bool take_row(uint64_t ordinal, bool is_open_wanted, Row* out) {
  const Row& row = ring.rows[ordinal % ring.rows.size()];
  if (row.id.load(std::memory_order_acquire) != ordinal + 1) return false;
  const int64_t ended = __atomic_load_n(&row.ended, __ATOMIC_ACQUIRE);
  if ((ended == kOpen) != is_open_wanted) return false;
  std::memcpy(static_cast<void*>(out), static_cast<const void*>(&row), sizeof(Row));
  std::atomic_thread_fence(std::memory_order_acquire);
  return row.id.load(std::memory_order_relaxed) == ordinal + 1;
}

void skip_overwritten(uint64_t head) {
  const uint64_t size = ring.rows.size();
  while (ring.tail + size < head) {
    uint8_t& is_taken = ring.taken[ring.tail++ % size];
    ring.dropped += is_taken ? 0 : 1;
    is_taken = 0;
  }
}

}  // namespace

extern "C" {

int irregulars_open_ring(uint64_t capacity) {
  if (!ring.rows.empty()) return 0;  // hooks of an earlier start may still write to it
  std::vector<Row> rows(capacity);
  std::memset(static_cast<void*>(rows.data()), 0, capacity * sizeof(Row));
  ring.rows.swap(rows);
  ring.taken.assign(capacity, 0);
  return 0;
}

// Adds the hooks to a group; they stay as long as the group does. 0, or -1 if it can't be done.
int irregulars_attach(const char* name, uint16_t number, const char* device) {
  int status = -1;
  guarded([&] {
    auto process_group = c10d::resolve_process_group(name);
    auto group = std::make_shared<Group>();
    group->number = number;
    group->device = c10::Device(std::string(device)).type();
    process_group->registerPreHook(
        kHookId, [group](const c10d::PreHookArgs& args) { guarded([&] { before(args, *group); }); });
    process_group->registerPostHook(
        kHookId, [group](const c10d::PostHookArgs& args) { guarded([&] { after(args, *group); }); });
    status = 0;
  });
  return status;
}

void irregulars_enable(int is_on) { is_enabled = is_on != 0; }

void irregulars_set_iteration(int64_t number) { iteration = number; }

// Gives ended rows that were not given before, or, with is_open_wanted, copies of those that have not ended.
uint64_t irregulars_take(Row* out, uint64_t most, int is_open_wanted, uint64_t* dropped) {
  const uint64_t size = ring.rows.size(), head = ring.head.load(std::memory_order_acquire);
  uint64_t count = 0;
  skip_overwritten(head);
  for (uint64_t ordinal = ring.tail; ordinal < head && count < most; ++ordinal) {
    if (ring.taken[ordinal % size] || !take_row(ordinal, is_open_wanted != 0, out + count)) continue;
    ring.taken[ordinal % size] = is_open_wanted ? 0 : 1;
    ++count;
  }
  while (ring.tail < head && ring.taken[ring.tail % size]) ring.taken[ring.tail++ % size] = 0;
  *dropped = ring.dropped;
  return count;
}

// Asks devices what has ended since; called by the thread that takes, never by one that issues.
void irregulars_ask_devices() {
  guarded([] {
    std::unique_lock<std::mutex> lock(device_mutex);
    for (auto& one : on_device) awaited.push_back(std::move(one));
    on_device.clear();
    lock.unlock();
    while (awaited.size() > ring.rows.size()) awaited.pop_front();
    // All of them: behind one that hangs, those of other groups go on.
    for (auto one = awaited.begin(); one != awaited.end();) one = settle(*one) ? awaited.erase(one) : std::next(one);
  });
}

uint64_t irregulars_errors(char* text, uint64_t size) {
  std::lock_guard<std::mutex> lock(error_mutex);
  std::strncpy(text, first_error.c_str(), size - 1);
  text[size - 1] = '\0';
  return errors;
}
}
