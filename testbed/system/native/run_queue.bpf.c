/*
 * When threads of chosen processes waited for a core: runnable and not running, from their wake-up, or from being
 * preempted, until a core takes them. Who is woken onto a core that has nothing to do waits for nobody, only for that core
 * to wake up; such a wait counts from WAKE_UP_NS on. sched/core.c of Linux calls these tracepoints with the run queue locked, so that the events of
 * a thread come in their order, whatever core they are on.
 *
 * Why not /proc/<pid>/task/<tid>/schedstat: that is a sum, which does not say who waited at the same time. Why not pressure
 * stall information: over several cores it is an average that is weighted by how busy each is (kernel/sched/psi.c,
 * collect_percpu_times), and so less than the time in which somebody waited.
 *
 * Of each wait it is also said for how long meanwhile some thread of the same process ran that runs before others, in a
 * real-time policy: what was preempted by its own process' thread has the work done that it waits for.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* As much of linux/sched.h as is read; libbpf finds where this kernel has it. */
struct thread_info {
    __u32 cpu;
} __attribute__((preserve_access_index));
struct task_struct {
    struct thread_info thread_info;
    int pid; /* of the thread, in the root namespace */
    int tgid;
    unsigned int __state;
    unsigned int rt_priority; /* 0: in no real-time policy */
} __attribute__((preserve_access_index));

enum { FIRST, RUNNING = 0, MAX_CORES = 4096 }; /* TASK_RUNNING of linux/sched.h */
enum { WAKE_UP_NS = 300000 }; /* as LATENESS_FLOOR_S of testbed/verdict/thresholds.py: more is no wake-up */

/* In the order of testbed/measure/run_queue_trace.py. */
struct wait {
    __u64 begin_ns, end_ns; /* CLOCK_MONOTONIC */
    __u64 behind_ns;        /* of it, while a real-time thread of the process ran */
    __u32 process, thread;
};
struct process {
    __u64 since_ns;     /* at least one of its real-time threads runs, if any does */
    __u64 ran_ns;       /* at least one did, before */
    __u64 num_running;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, __u32);
    __type(value, struct process);
} processes SEC(".maps"); /* those whose threads are looked at */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, __u32);
    __type(value, __u32);
} running SEC(".maps"); /* their real-time threads that are on a core */
struct pending {
    __u64 since_ns;
    __u64 ran_ns; /* of its process' real-time threads, until then */
    __u64 idle_core; /* it was woken onto, and one; 0: the core was busy */
};
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __type(key, __u32);
    __type(value, struct pending);
} waiting SEC(".maps"); /* by thread */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_CORES);
    __type(key, __u32);
    __type(value, __u32);
} idle SEC(".maps"); /* cores that run nothing */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
} waits SEC(".maps"); /* bytes; whoever loads it says how many */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} lost SEC(".maps"); /* waits for which there was no room */

static __always_inline void count_lost(void)
{
    __u32 first = FIRST;
    __u64 *number = bpf_map_lookup_elem(&lost, &first);

    if (number)
        __sync_fetch_and_add(number, 1);
}

static __always_inline struct process *followed(struct task_struct *task)
{
    __u32 process = task->tgid;

    return bpf_map_lookup_elem(&processes, &process);
}

/* For how long at least one of its real-time threads has run. Where two cores change that at the same moment it may be less,
 * never more. */
static __always_inline __u64 ran_ns(const struct process *process, __u64 now_ns)
{
    __u64 since_ns = process->since_ns, ran_ns = process->ran_ns;

    return process->num_running && now_ns > since_ns ? ran_ns + now_ns - since_ns : ran_ns;
}

static __always_inline void comes_onto_core(struct process *process, struct task_struct *task, __u64 now_ns)
{
    __u32 thread = task->pid, one = 1;

    if (!task->rt_priority || bpf_map_update_elem(&running, &thread, &one, BPF_NOEXIST))
        return;
    if (__sync_fetch_and_add(&process->num_running, 1) == 0)
        process->since_ns = now_ns;
}

/* Who has come onto it, whatever policy it is in by now. */
static __always_inline void leaves_core(struct process *process, struct task_struct *task, __u64 now_ns)
{
    __u64 since_ns = process->since_ns;
    __u32 thread = task->pid;

    if (bpf_map_delete_elem(&running, &thread))
        return;
    if (__sync_fetch_and_add(&process->num_running, -1) == 1 && now_ns > since_ns)
        process->ran_ns += now_ns - since_ns;
}

/* Somebody who waits already may be woken once more. */
static __always_inline void woken_up(struct task_struct *task)
{
    __u32 thread = task->pid, core = task->thread_info.cpu;
    __u32 *is_idle = bpf_map_lookup_elem(&idle, &core);
    struct process *process = followed(task);
    struct pending begun = {.since_ns = bpf_ktime_get_ns(), .idle_core = is_idle && *is_idle ? core + 1 : 0};

    if (!process || bpf_map_lookup_elem(&waiting, &thread))
        return;
    begun.ran_ns = ran_ns(process, begun.since_ns);
    if (bpf_map_update_elem(&waiting, &thread, &begun, BPF_ANY))
        count_lost();
}

static __always_inline void leaves(struct task_struct *task, int runnable, __u64 now_ns)
{
    struct process *process = followed(task);
    struct pending begun = {.since_ns = now_ns};
    __u32 thread = task->pid;

    if (!process)
        return;
    leaves_core(process, task, now_ns);
    begun.ran_ns = ran_ns(process, now_ns);
    if (!runnable)
        bpf_map_delete_elem(&waiting, &thread); /* it may have been woken while it still ran */
    else if (bpf_map_update_elem(&waiting, &thread, &begun, BPF_ANY))
        count_lost();
}

SEC("tp_btf/sched_wakeup")
int woken(__u64 *context)
{
    woken_up((struct task_struct *)context[0]);
    return 0;
}

SEC("tp_btf/sched_wakeup_new")
int started(__u64 *context)
{
    woken_up((struct task_struct *)context[0]);
    return 0;
}

SEC("tp_btf/sched_switch")
int switched(__u64 *context)
{
    int preempted = context[0] & 1;
    struct task_struct *previous = (struct task_struct *)context[1], *next = (struct task_struct *)context[2];
    __u32 core = bpf_get_smp_processor_id(), thread = next->pid, is_idle = thread == 0;
    __u64 now_ns = bpf_ktime_get_ns();
    struct process *process;
    struct pending *begun;
    struct wait *wait;

    bpf_map_update_elem(&idle, &core, &is_idle, BPF_ANY);
    leaves(previous, preempted || previous->__state == RUNNING, now_ns);
    if (!(process = followed(next)))
        return 0;
    begun = bpf_map_lookup_elem(&waiting, &thread);
    if (begun && (previous->pid != 0 || begun->idle_core != core + 1 || now_ns - begun->since_ns > WAKE_UP_NS)) {
        wait = bpf_ringbuf_reserve(&waits, sizeof *wait, 0);
        if (wait) {
            wait->begin_ns = begun->since_ns;
            wait->end_ns = now_ns;
            wait->behind_ns = ran_ns(process, now_ns) - begun->ran_ns;
            wait->process = next->tgid;
            wait->thread = thread;
            bpf_ringbuf_submit(wait, BPF_RB_NO_WAKEUP);
        } else {
            count_lost();
        }
    }
    bpf_map_delete_elem(&waiting, &thread);
    comes_onto_core(process, next, now_ns);
    return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL"; /* the helpers used are for GPL-compatible programs */
