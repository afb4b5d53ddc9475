	.file	"<string>"
	.section	.rodata.cst16,"aM",@progbits,16
	.p2align	4, 0x0
.LCPI0_0:
	.long	0x7fffffff
	.long	0x7fffffff
	.long	0x7fffffff
	.long	0x7fffffff
.LCPI0_1:
	.long	0xbbb4b893
	.long	0xbbb4b893
	.long	0xbbb4b893
	.long	0xbbb4b893
.LCPI0_2:
	.long	0x3ca7af7e
	.long	0x3ca7af7e
	.long	0x3ca7af7e
	.long	0x3ca7af7e
.LCPI0_3:
	.long	0xbd5be7f9
	.long	0xbd5be7f9
	.long	0xbd5be7f9
	.long	0xbd5be7f9
.LCPI0_4:
	.long	0x3e0881f9
	.long	0x3e0881f9
	.long	0x3e0881f9
	.long	0x3e0881f9
.LCPI0_5:
	.long	0xbeaaaa92
	.long	0xbeaaaa92
	.long	0xbeaaaa92
	.long	0xbeaaaa92
.LCPI0_6:
	.long	0xc2b00f34
	.long	0xc2b00f34
	.long	0xc2b00f34
	.long	0xc2b00f34
.LCPI0_7:
	.long	0x42b17218
	.long	0x42b17218
	.long	0x42b17218
	.long	0x42b17218
.LCPI0_8:
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
.LCPI0_9:
	.long	0x4b40007f
	.long	0x4b40007f
	.long	0x4b40007f
	.long	0x4b40007f
.LCPI0_10:
	.long	0xbf317200
	.long	0xbf317200
	.long	0xbf317200
	.long	0xbf317200
.LCPI0_11:
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
.LCPI0_12:
	.long	0x3c07d3ec
	.long	0x3c07d3ec
	.long	0x3c07d3ec
	.long	0x3c07d3ec
.LCPI0_13:
	.long	0x3d2b9d68
	.long	0x3d2b9d68
	.long	0x3d2b9d68
	.long	0x3d2b9d68
.LCPI0_14:
	.long	0x3e2aad37
	.long	0x3e2aad37
	.long	0x3e2aad37
	.long	0x3e2aad37
.LCPI0_15:
	.long	0x3efffee2
	.long	0x3efffee2
	.long	0x3efffee2
	.long	0x3efffee2
.LCPI0_16:
	.long	0x3f7ffffb
	.long	0x3f7ffffb
	.long	0x3f7ffffb
	.long	0x3f7ffffb
.LCPI0_17:
	.long	0x3f800000
	.long	0x3f800000
	.long	0x3f800000
	.long	0x3f800000
.LCPI0_18:
	.long	0xc0000000
	.long	0xc0000000
	.long	0xc0000000
	.long	0xc0000000
.LCPI0_19:
	.long	0x3f200000
	.long	0x3f200000
	.long	0x3f200000
	.long	0x3f200000
.LCPI0_20:
	.long	0x80000000
	.long	0x80000000
	.long	0x80000000
	.long	0x80000000
	.text
	.globl	tanh
	.p2align	4
	.type	tanh,@function
tanh:
	.cfi_startproc
	pushq	%r15
	.cfi_def_cfa_offset 16
	pushq	%r14
	.cfi_def_cfa_offset 24
	pushq	%r12
	.cfi_def_cfa_offset 32
	pushq	%rbx
	.cfi_def_cfa_offset 40
	subq	$24, %rsp
	.cfi_def_cfa_offset 64
	.cfi_offset %rbx, -40
	.cfi_offset %r12, -32
	.cfi_offset %r14, -24
	.cfi_offset %r15, -16
	movq	%rdx, %rbx
	movq	%rsi, %r14
	movq	%rdi, %r15
	movq	%rdx, %r12
	sarq	$6, %r12
	movq	%rdi, (%rsp)
	movq	%rsi, 8(%rsp)
	movq	%rdx, 16(%rsp)
	leaq	tanh.body0.entry(%rip), %rdi
	movq	%rsp, %rsi
	movq	%r12, %rdx
	callq	kiln_parallel_for@PLT
	movq	%rbx, %rax
	andq	$-64, %rax
	cmpq	%rbx, %rax
	jge	.LBB0_3
	shlq	$10, %r12
	movaps	.LCPI0_9(%rip), %xmm9
	movaps	.LCPI0_14(%rip), %xmm14
	movaps	.LCPI0_15(%rip), %xmm15
	movaps	.LCPI0_16(%rip), %xmm0
	movaps	.LCPI0_17(%rip), %xmm1
	movaps	.LCPI0_18(%rip), %xmm2
	movaps	.LCPI0_19(%rip), %xmm10
	xorps	%xmm4, %xmm4
	movaps	.LCPI0_20(%rip), %xmm5
	.p2align	4
.LBB0_2:
	movups	(%r15,%r12), %xmm7
	movaps	%xmm7, %xmm11
	andps	.LCPI0_0(%rip), %xmm11
	movaps	%xmm7, %xmm3
	mulps	%xmm7, %xmm3
	movaps	%xmm7, %xmm6
	mulps	%xmm3, %xmm6
	movaps	%xmm3, %xmm8
	mulps	.LCPI0_1(%rip), %xmm8
	addps	.LCPI0_2(%rip), %xmm8
	mulps	%xmm3, %xmm8
	addps	.LCPI0_3(%rip), %xmm8
	mulps	%xmm3, %xmm8
	addps	.LCPI0_4(%rip), %xmm8
	mulps	%xmm3, %xmm8
	addps	.LCPI0_5(%rip), %xmm8
	mulps	%xmm6, %xmm8
	movaps	%xmm10, %xmm3
	cmpltps	%xmm11, %xmm3
	addps	%xmm11, %xmm11
	movaps	.LCPI0_6(%rip), %xmm6
	maxps	%xmm11, %xmm6
	movaps	.LCPI0_7(%rip), %xmm12
	minps	%xmm6, %xmm12
	movaps	%xmm12, %xmm11
	mulps	.LCPI0_8(%rip), %xmm11
	addps	%xmm9, %xmm11
	movaps	%xmm11, %xmm6
	subps	%xmm9, %xmm6
	movaps	%xmm6, %xmm13
	mulps	.LCPI0_10(%rip), %xmm13
	addps	%xmm12, %xmm13
	mulps	.LCPI0_11(%rip), %xmm6
	addps	%xmm13, %xmm6
	movaps	%xmm6, %xmm12
	mulps	.LCPI0_12(%rip), %xmm12
	addps	.LCPI0_13(%rip), %xmm12
	mulps	%xmm6, %xmm12
	addps	%xmm14, %xmm12
	mulps	%xmm6, %xmm12
	addps	%xmm15, %xmm12
	mulps	%xmm6, %xmm12
	addps	%xmm0, %xmm12
	mulps	%xmm6, %xmm12
	addps	%xmm7, %xmm8
	addps	%xmm1, %xmm12
	pslld	$23, %xmm11
	mulps	%xmm12, %xmm11
	addps	%xmm1, %xmm11
	movaps	%xmm2, %xmm6
	divps	%xmm11, %xmm6
	addps	%xmm1, %xmm6
	cmpltps	%xmm4, %xmm7
	movaps	%xmm7, %xmm11
	andnps	%xmm6, %xmm11
	xorps	%xmm5, %xmm6
	andps	%xmm7, %xmm6
	orps	%xmm11, %xmm6
	andps	%xmm3, %xmm6
	andnps	%xmm8, %xmm3
	orps	%xmm6, %xmm3
	movups	%xmm3, (%r14,%r12)
	incq	%rax
	addq	$16, %r12
	cmpq	%rbx, %rax
	jl	.LBB0_2
.LBB0_3:
	addq	$24, %rsp
	.cfi_def_cfa_offset 40
	popq	%rbx
	.cfi_def_cfa_offset 32
	popq	%r12
	.cfi_def_cfa_offset 24
	popq	%r14
	.cfi_def_cfa_offset 16
	popq	%r15
	.cfi_def_cfa_offset 8
	retq
.Lfunc_end0:
	.size	tanh, .Lfunc_end0-tanh
	.cfi_endproc

	.p2align	4
	.type	tanh.body0.entry,@function
tanh.body0.entry:
	.cfi_startproc
	pushq	%rax
	.cfi_def_cfa_offset 16
	movq	%rdx, %r8
	movq	%rsi, %rcx
	movq	(%rdi), %rax
	movq	8(%rdi), %rsi
	movq	16(%rdi), %rdx
	movq	%rax, %rdi
	callq	tanh.body0
	popq	%rax
	.cfi_def_cfa_offset 8
	retq
.Lfunc_end1:
	.size	tanh.body0.entry, .Lfunc_end1-tanh.body0.entry
	.cfi_endproc

	.section	.rodata.cst16,"aM",@progbits,16
	.p2align	4, 0x0
.LCPI2_0:
	.long	0x7fffffff
	.long	0x7fffffff
	.long	0x7fffffff
	.long	0x7fffffff
.LCPI2_1:
	.long	0xbbb4b893
	.long	0xbbb4b893
	.long	0xbbb4b893
	.long	0xbbb4b893
.LCPI2_2:
	.long	0x3ca7af7e
	.long	0x3ca7af7e
	.long	0x3ca7af7e
	.long	0x3ca7af7e
.LCPI2_3:
	.long	0xbd5be7f9
	.long	0xbd5be7f9
	.long	0xbd5be7f9
	.long	0xbd5be7f9
.LCPI2_4:
	.long	0x3e0881f9
	.long	0x3e0881f9
	.long	0x3e0881f9
	.long	0x3e0881f9
.LCPI2_5:
	.long	0xbeaaaa92
	.long	0xbeaaaa92
	.long	0xbeaaaa92
	.long	0xbeaaaa92
.LCPI2_6:
	.long	0xc2b00f34
	.long	0xc2b00f34
	.long	0xc2b00f34
	.long	0xc2b00f34
.LCPI2_7:
	.long	0x42b17218
	.long	0x42b17218
	.long	0x42b17218
	.long	0x42b17218
.LCPI2_8:
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
.LCPI2_9:
	.long	0x4b40007f
	.long	0x4b40007f
	.long	0x4b40007f
	.long	0x4b40007f
.LCPI2_10:
	.long	0xbf317200
	.long	0xbf317200
	.long	0xbf317200
	.long	0xbf317200
.LCPI2_11:
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
.LCPI2_12:
	.long	0x3c07d3ec
	.long	0x3c07d3ec
	.long	0x3c07d3ec
	.long	0x3c07d3ec
.LCPI2_13:
	.long	0x3d2b9d68
	.long	0x3d2b9d68
	.long	0x3d2b9d68
	.long	0x3d2b9d68
.LCPI2_14:
	.long	0x3e2aad37
	.long	0x3e2aad37
	.long	0x3e2aad37
	.long	0x3e2aad37
.LCPI2_15:
	.long	0x3efffee2
	.long	0x3efffee2
	.long	0x3efffee2
	.long	0x3efffee2
.LCPI2_16:
	.long	0x3f7ffffb
	.long	0x3f7ffffb
	.long	0x3f7ffffb
	.long	0x3f7ffffb
.LCPI2_17:
	.long	0x3f800000
	.long	0x3f800000
	.long	0x3f800000
	.long	0x3f800000
.LCPI2_18:
	.long	0xc0000000
	.long	0xc0000000
	.long	0xc0000000
	.long	0xc0000000
.LCPI2_19:
	.long	0x3f200000
	.long	0x3f200000
	.long	0x3f200000
	.long	0x3f200000
.LCPI2_20:
	.long	0x80000000
	.long	0x80000000
	.long	0x80000000
	.long	0x80000000
	.text
	.p2align	4
	.type	tanh.body0,@function
tanh.body0:
	.cfi_startproc
	cmpq	%r8, %rcx
	jge	.LBB2_5
	movq	%rcx, %rax
	shlq	$10, %rax
	addq	%rax, %rsi
	addq	%rax, %rdi
	movaps	.LCPI2_0(%rip), %xmm3
	movaps	.LCPI2_1(%rip), %xmm12
	movaps	.LCPI2_2(%rip), %xmm13
	movaps	.LCPI2_3(%rip), %xmm0
	movaps	.LCPI2_4(%rip), %xmm2
	movaps	.LCPI2_5(%rip), %xmm4
	movaps	.LCPI2_6(%rip), %xmm10
	movaps	.LCPI2_7(%rip), %xmm5
	movaps	.LCPI2_8(%rip), %xmm9
	movaps	.LCPI2_9(%rip), %xmm1
	movaps	.LCPI2_12(%rip), %xmm14
	movaps	.LCPI2_19(%rip), %xmm15
	.p2align	4
.LBB2_2:
	xorl	%eax, %eax
	xorl	%edx, %edx
	.p2align	4
.LBB2_3:
	movups	(%rdi,%rax), %xmm7
	movaps	%xmm7, %xmm11
	andps	%xmm3, %xmm11
	movaps	%xmm7, %xmm3
	mulps	%xmm7, %xmm3
	movaps	%xmm7, %xmm8
	mulps	%xmm3, %xmm8
	movaps	%xmm3, %xmm6
	mulps	%xmm12, %xmm6
	addps	%xmm13, %xmm6
	mulps	%xmm3, %xmm6
	addps	%xmm0, %xmm6
	mulps	%xmm3, %xmm6
	addps	%xmm2, %xmm6
	mulps	%xmm3, %xmm6
	addps	%xmm4, %xmm6
	mulps	%xmm8, %xmm6
	movaps	%xmm15, %xmm3
	cmpltps	%xmm11, %xmm3
	addps	%xmm11, %xmm11
	movaps	%xmm10, %xmm8
	maxps	%xmm11, %xmm8
	movaps	%xmm5, %xmm12
	minps	%xmm8, %xmm12
	movaps	%xmm12, %xmm11
	mulps	%xmm9, %xmm11
	addps	%xmm1, %xmm11
	movaps	%xmm11, %xmm8
	subps	%xmm1, %xmm8
	movaps	%xmm14, %xmm15
	movaps	%xmm1, %xmm14
	movaps	%xmm9, %xmm1
	movaps	%xmm5, %xmm9
	movaps	%xmm10, %xmm5
	movaps	%xmm4, %xmm10
	movaps	%xmm2, %xmm4
	movaps	%xmm0, %xmm2
	movaps	%xmm13, %xmm0
	movaps	%xmm8, %xmm13
	mulps	.LCPI2_10(%rip), %xmm13
	addps	%xmm12, %xmm13
	mulps	.LCPI2_11(%rip), %xmm8
	addps	%xmm13, %xmm8
	movaps	%xmm0, %xmm13
	movaps	%xmm2, %xmm0
	movaps	%xmm4, %xmm2
	movaps	%xmm10, %xmm4
	movaps	%xmm5, %xmm10
	movaps	%xmm9, %xmm5
	movaps	%xmm1, %xmm9
	movaps	%xmm14, %xmm1
	movaps	%xmm15, %xmm14
	movaps	.LCPI2_13(%rip), %xmm15
	movaps	%xmm8, %xmm12
	mulps	%xmm14, %xmm12
	addps	%xmm15, %xmm12
	movaps	.LCPI2_14(%rip), %xmm15
	mulps	%xmm8, %xmm12
	addps	%xmm15, %xmm12
	movaps	.LCPI2_15(%rip), %xmm15
	mulps	%xmm8, %xmm12
	addps	%xmm15, %xmm12
	movaps	.LCPI2_16(%rip), %xmm15
	mulps	%xmm8, %xmm12
	addps	%xmm15, %xmm12
	movaps	.LCPI2_17(%rip), %xmm15
	mulps	%xmm8, %xmm12
	addps	%xmm7, %xmm6
	addps	%xmm15, %xmm12
	pslld	$23, %xmm11
	mulps	%xmm12, %xmm11
	movaps	.LCPI2_1(%rip), %xmm12
	addps	%xmm15, %xmm11
	movaps	.LCPI2_18(%rip), %xmm8
	divps	%xmm11, %xmm8
	addps	%xmm15, %xmm8
	movaps	.LCPI2_19(%rip), %xmm15
	xorps	%xmm11, %xmm11
	cmpltps	%xmm11, %xmm7
	movaps	%xmm7, %xmm11
	andnps	%xmm8, %xmm11
	xorps	.LCPI2_20(%rip), %xmm8
	andps	%xmm7, %xmm8
	orps	%xmm11, %xmm8
	andps	%xmm3, %xmm8
	andnps	%xmm6, %xmm3
	orps	%xmm8, %xmm3
	movups	%xmm3, (%rsi,%rax)
	movaps	.LCPI2_0(%rip), %xmm3
	incq	%rdx
	addq	$16, %rax
	cmpq	$64, %rdx
	jl	.LBB2_3
	incq	%rcx
	addq	$1024, %rsi
	addq	$1024, %rdi
	cmpq	%r8, %rcx
	jl	.LBB2_2
.LBB2_5:
	retq
.Lfunc_end2:
	.size	tanh.body0, .Lfunc_end2-tanh.body0
	.cfi_endproc

	.section	".note.GNU-stack","",@progbits
